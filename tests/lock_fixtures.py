"""Locks written by hand, with a base, its packages, an archive, a wheel and patches."""

from __future__ import annotations

from typing import Any

from toolchain.pipeline.lockfile import Lock, LockedBase, LockedPackage, LockedPatch, LockedSource

A, B = "sha256:" + "a" * 64, "sha256:" + "b" * 64
ODD = 'it\'s "quoted" \\ \x7f\n\té'


def source(**changes: Any) -> LockedSource:
    value: dict[str, Any] = {
        "name": "llvm",
        "kind": "archive",
        "ref": f"https://example.test/x.tar.gz#sha256={'1' * 64}",
        "repository": "https://example.test/x.tar.gz",
        "digest": A,
        "file": "x.tar.gz",
        "parts": ("llvm", "mlir"),
        "tree": B,
        "license": "MIT",
        "patches": (LockedPatch(name=ODD, digest=A), LockedPatch(name="second", digest=B)),
    }
    return LockedSource(**{**value, **changes})


def base(**changes: Any) -> LockedBase:
    packages = (
        LockedPackage(name="apt", version="3.0", arch="amd64", sha256="1" * 64),
        LockedPackage(name="libc6", version="1:2.41-12+deb13u1~x", arch="amd64", sha256="2" * 64),
    )
    value: dict[str, Any] = {
        "name": "debian13",
        "arch": "amd64",
        "state": "resolved",
        "recipe": A,
        "suite": "trixie",
        "image": B,
        "packages_digest": A,
        "packages": packages,
    }
    return LockedBase(**{**value, **changes})


def wheel(**changes: Any) -> LockedSource:
    value = {"name": "triton", "kind": "pypi", "ref": "pypi:triton==1", "repository": "pypi", "digest": B}
    return LockedSource(**{**value, "file": "triton-1-py3-none-any.whl", **changes})


def lock(**changes: Any) -> Lock:
    value: dict[str, Any] = {
        "toolchain": "0.1.0",
        "epoch": 1,
        "format": 1,
        "request": {"stage": "all", "source": {"llvm": ODD}, "arch": ["amd64"], "patch": {"llvm": [ODD, "second"]}},
        "bases": (base(),),
        "sources": (source(), wheel()),
    }
    return Lock(**{**value, **changes})
