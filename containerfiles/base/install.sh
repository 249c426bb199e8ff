#!/bin/sh
# Turns an Enterprise Linux image into a base. The Containerfiles in the folders below run it. It reads these variables:
#   REPOS     repositories to enable for this run
#   FIRST     packages that add further repositories
#   TOOLSET   the GCC Toolset whose programs are linked into the PATH
#   PYTHON    the Python that `python3` starts
# It reads /recipe/packages and writes the list of installed packages to /toolchain-packages, where the tool reads it.
set -eu
umask 022
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 LC_ALL=C.UTF-8

options='-y --setopt=install_weak_deps=0 --setopt=tsflags=nodocs'
enable=
for repo in ${REPOS:-}; do enable="$enable --enablerepo=$repo"; done
packages=$(sed 's/#.*//' /recipe/packages)
# shellcheck disable=SC2086  # lists of words, all of them
{
  if [ -n "${FIRST:-}" ]; then dnf $options install $FIRST; fi
  dnf $options $enable install $packages
}

# Builds run with a fixed PATH that does not include a toolset below /opt. The toolset's assembler and linker are linked too,
# because an old assembler does not accept everything that the new compiler writes.
bin=/opt/rh/$TOOLSET/root/usr/bin
if [ ! -x "$bin/g++" ]; then
  echo "toolchain: $TOOLSET did not install $bin/g++" >&2
  exit 42
fi
mkdir -p /usr/local/bin /etc/ld.so.conf.d
for tool in gcc g++ cc c++ cpp gcc-ar gcc-nm gcc-ranlib gcov ar as ld ld.bfd nm objcopy objdump ranlib readelf size strings strip; do
  if [ -x "$bin/$tool" ]; then ln -sf "$bin/$tool" "/usr/local/bin/$tool"; fi
done
echo "/opt/rh/$TOOLSET/root/usr/lib64" >/etc/ld.so.conf.d/toolchain-toolset.conf
ldconfig

interpreter=$(command -v "$PYTHON" || :)
if [ -z "$interpreter" ]; then
  echo "toolchain: there is no $PYTHON" >&2
  exit 42
fi
ln -sf "$interpreter" /usr/local/bin/python3
if ! command -v ninja >/dev/null && command -v ninja-build >/dev/null; then
  ln -sf "$(command -v ninja-build)" /usr/local/bin/ninja
fi

missing=
for tool in clang clang++ ld.lld gcc g++ cmake ninja git python3; do
  command -v "$tool" >/dev/null || missing="$missing $tool"
done
if [ -n "$missing" ]; then
  echo "toolchain: the packages did not bring:$missing" >&2
  exit 42
fi

rpm -qa --qf '%{NAME}:%{ARCH}=%{EPOCHNUM}:%{VERSION}-%{RELEASE},%{SHA256HEADER}\n' | sort >/toolchain-packages
dnf clean all
rm -rf /var/cache/dnf /var/lib/dnf/history* /var/log/dnf* /var/log/hawkey*
