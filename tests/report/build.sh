#!/bin/sh
# Runs in the base: the notes, and how many lines they have.
set -eu
mkdir -p /out/usr/share/report
cp /notes/report.txt /out/usr/share/report/report.txt
wc -l </notes/report.txt >>/out/usr/share/report/report.txt
