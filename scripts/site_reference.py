"""The pages of reference that are made from the code: verbs, configuration, names, prebuilt things, GPUs."""

from __future__ import annotations

import textwrap
from typing import Any

from scripts.options_table import commands
from scripts.site_compatibility import MADE, table
from toolchain.catalog.aotriton_generations import pack
from toolchain.catalog.gpus import known_gpus, parse_gpus
from toolchain.catalog.stages import STAGES
from toolchain.cli.config_file import forms
from toolchain.cli.options import file_options
from toolchain.cli.verbs import GROUPS, all_verbs
from toolchain.data import load
from toolchain.oci import labels
from toolchain.request.declaration import Option
from toolchain.stages.prebuilt import known_files


def _one_line(text: str) -> str:
    """Text of code as prose: `name` stays code, line ends go."""
    return " ".join(text.replace("\\[", "[").split())


def verbs() -> str:
    """Every verb with its help, arguments and options."""
    parts = ["# Verbs\n", MADE,
             ("`toolchain VERB --help` prints this with a line for each option. [Options](../options.md) describes all of them.\n"),
             table(["verb", "does"], [[f"[`{verb.name}`](#{_anchor(verb.name)})", verb.brief] for verb in all_verbs()])]  # fmt: skip
    found, told = commands(), set[str]()
    for verb in all_verbs():
        command = found[verb.name]
        group = verb.name.partition(" ")[0]
        parts.append(f"## {verb.name} {{ #{_anchor(verb.name)} }}\n")
        if group in GROUPS and verb.name.startswith(group + " ") and group not in told:
            told.add(group)
            parts.append(f"{GROUPS[group]}\n")
        parts.append(f"{_one_line(command.help or verb.brief)}\n")
        arguments = [one for one in command.params if one.param_type_name == "argument"]
        words = [_argument(one) if one.required else f"[{_argument(one)}]" for one in arguments]
        parts.append(f"```text\ntoolchain {' '.join([verb.name, *words, '[OPTIONS]'])}\n```\n")
        parts += [f"- `{_argument(one)}`: {_one_line(one.help)}{_default(one)}\n" for one in arguments if one.help]
        flags = sorted(
            one.opts[0]
            for one in command.params
            if one.param_type_name == "option" and not getattr(one, "hidden", False)
        )
        if not flags:
            continue
        # No sentence: there are too many of them for one.
        lines = textwrap.fill(" ".join(flags), 100, break_on_hyphens=False, break_long_words=False)
        parts.append(f"Options:\n\n```text\n{lines}\n```\n")
    return "\n".join(parts)


def _argument(one: Any) -> str:
    """An argument as `--help` calls it."""
    return str(one.metavar or (one.name or "").rstrip("_").upper())


def _default(one: Any) -> str:
    """The default of an optional stage."""
    if one.required or not isinstance(one.default, str):
        return ""
    return f" Default: `stage` in toolchain.toml, else `{one.default}`."


def _anchor(name: str) -> str:
    return "verb-" + name.replace(" ", "-")


def _found(option: Option) -> str:
    """Whether a file that nobody named may set an option."""
    if not option.found:
        return "no"
    return "versions and names on record" if option.kind == "text" and option.known is not None else "yes"


def configuration() -> str:
    """The file of option values, and the environment."""
    rows = [
        [f"`{one.name}`", f"`{forms()[one.kind]}`", _found(one)]
        for one in sorted(file_options(), key=lambda one: one.name)
    ]
    return "\n".join([
        "# Configuration\n",
        MADE,
        "## toolchain.toml\n",
        ("Options that every call needs can stand in a TOML file. Its keys are the options without dashes ([Options](../options.md)), and"
        " `stage` for verbs that are called without one. Relative paths are relative to the folder of the file. The command line and"
        " the environment override it, and a verb ignores the keys of other verbs.\n"),
        ("```toml\nstage = \"aotriton\"\naotriton = \"0.13b\"\ngpu = [\"gfx942\", \"gfx1100\"]\n"
        "drop-binary = [\"libdevice\"]\n```\n"),
        ("`toolchain --config FILE VERB`, or `TOOLCHAIN_CONFIG`, names the file, and it may have any of these keys. Without that,"
        " `toolchain.toml` in the current folder is read, if there is one. Such a file may come from someone else, as after `git"
        " clone`. So it may only have keys that cannot decide whose code, keys, paths or registries are used; any other key in it is"
        " an error (exit code 3). The example needs `--config` because of `drop-binary`.\n"),
        table(["key", "value", "in a file that nobody named"], rows),
        "## Environment\n",
        ("Most options can also be set by an environment variable: `TOOLCHAIN_` and the name in capitals, values of repeatable"
        " options separated by spaces ([Options](../options.md)). Further variables:\n"),
        table(["variable", "what"], [
            ["`TOOLCHAIN_KEY_PASSPHRASE`", "passphrase of the private key, for `keygen` and `publish`"],
            ["`TOOLCHAIN_LIMITS`", "limits of a container, `NAME=VALUE,…`; see [isolation](../isolation.md#limits-of-a-container)"],
            ["`TOOLCHAIN_LOCK_TIMEOUT`", "seconds to wait for another invocation: 86400; 0 does not wait"],
            ["`TOOLCHAIN_CONFIG`", "as `--config`"],
            ["`TOOLCHAIN_LLVM_OBJDUMP`", "llvm-objdump of `build --check`, `kernels check` and `emulate`; as `--objdump`"],
            ["`REGISTRY_AUTH_FILE`, `DOCKER_CONFIG`", "files with logins, read before `~/.docker/config.json`"],
        ]),
        ("`TOOLCHAIN_KEY` is the private key of `publish`. `TOOLCHAIN_PUBLIC_KEY` is the key that `verify` and"
        " `build --reuse-from` accept.\n"),
    ])  # fmt: skip


_OF_LABELS = {
    "CREATED": "a fixed time, so that images stay equal",
    "TITLE": "title for display",
    "REVISION": "the commit of the source",
    "LICENSES": "SPDX expression of what is in the layer",
    "INPUT_DIGEST": "SHA-256 of everything that decides the bytes; its first 12 digits are a tag of the image",
    "BINARIES": "prebuilt inputs that were accepted by name",
    "PARTIAL": "what is missing, in a partial image",
    "GPUS": "the GPUs of the kernels",
    "TRITON": "version and commit of the Triton inside or below, if known",
    "LLVM": "likewise of the LLVM",
    "KERNELS": "the number of kernels, and of those known bad",
    "GLIBC": "the oldest glibc that the layer works with",
    "GLIBCXX": "the newest libstdc++ symbol version that it needs",
    "BUILD_TYPE": "CMake's build type of the layer",
    "TRITON_BUILD": "the setting that a Triton built on the layer needs",
    "CACHE_MOUNT": "the folder that a Triton cache must be copied to",
    "CACHE_CALLS": "the calls that it has kernels for, as JSON",
    "CACHE_TRITON": "input digest of the Triton image that it is for",
    "CACHE_TRITON_LAYER": "digest of that image's top layer, uncompressed",
    "CACHE_TRITON_KEY": "SHA-256 of Triton's own part of its cache keys",
    "CACHE_MCV_KEY": "that part itself, where MCV finds it: with Triton before 3.6",
    "CACHE_TRITON_PATH": "the folder of that Triton's package",
}


def names() -> str:
    """Names of images, tags and labels."""
    stages = [[f"`{one.name}`", one.title.format("NAME") or "the image's own name",
               ", ".join(f"`{name}`" for name in sorted(one.sources)) or "packages",
               one.license or "those of the packages"] for one in STAGES]  # fmt: skip
    own = {name: value for name, value in vars(labels).items() if name.isupper() and not name.startswith("_")}
    return "\n".join([
        "# Names and labels\n",
        MADE,
        "## Images\n",
        table(["image", "what"], [
            ["`toolchain-base-BASE`", "a base"],
            ["`toolchain-sysroot-glibc-FLOOR`, `toolchain-sysroot-BASE`", "headers and libraries to compile against"],
            ["`toolchain-python-VERSIONS`", "the CPythons of portable wheels"],
            ["`llvm-triton-HASH8`", "portable LLVM at a commit, with its first eight digits"],
            ["`llvm-triton-22.1.8`", "the same from a distribution's source package, with its version"],
            ["`llvm-triton-HASH8-BASE`", "LLVM for one base only"],
            ["`llvm-triton-tablegen-…`, `llvm-triton-mlir-tblgen-…`, `llvm-triton-support-…`", "parts, by `--only`"],
            ["`triton-HASH8-BASE`", "Triton at a commit, in an image with the base's Python"],
            ["`triton-vVERSION-BASE`", "its name in `plan` until the commit of the tag `vVERSION` is known"],
            ["`triton-treeHASH8-BASE`, `llvm-triton-treeHASH8`",
             "from a checkout: the first eight digits of the tree's SHA-256"],
            ["`triton-wheel-VERSION-BASE`", "the index's wheel of Triton, in an image with the base's Python"],
            ["`llvm-amdgpu-HASH8`, `triton-codegen-amdgpu-HASH8`", "for Triton 3.9 and later: the LLVM for AMD GPUs, and the library on it"],
            ["`kernel-worker-NAME-VERSION-BASE`", "a worker for `aotriton` or `flash-attn`"],
            ["`flash-attn-kernels-VERSION-triton-TRITON-BASE`", "FlashAttention code objects; `-partial-` if not all"],
            ["`toolchain-hip-ROCMS`", "HIP headers and stub libraries to link with"],
            ["`aotriton-HASH8-GPUS`", "AOTriton's library for several ROCms, and kernels"],
            ["`aotriton-HASH8-GPUS-BASE`", "the same for the HIP of one base, by `--base`"],
            ["`toolchain-torch-BASE`", "the distribution's PyTorch"],
            ["`flash-attn-VERSION-triton-TRITON-BASE`, `aiter-…`, `vllm-…`, `wheels-WHEELS-triton-TRITON-BASE`",
             "wheels built on Triton, with base, Triton and PyTorch"],
            ["`triton-cache-WHEEL-triton-TRITON-BASE`", "the kernels of a wheel, compiled ahead of time"],
        ]),
        ("TRITON is the first eight digits of Triton's commit, or the version of the index's wheel.\n"),
        ("BASE is the base's name; for your own image (`--base oci:mybase`) it is `local-` and the first eight digits of its"
         " manifest's digest, as in `llvm-triton-f6ded0be-local-0123abcd`.\n"),
        ("The path in the image never contains the base or the part: `llvm-triton-f6ded0be-debian13` and"
        " `llvm-triton-tablegen-f6ded0be` both have `/usr/lib64/llvm-triton-f6ded0be`. AOTriton's is `/usr/lib64/aotriton-HASH8-GPUS`,"
        " FlashAttention's `/usr/lib64/flash-attn-kernels`, Triton's `/usr/lib/toolchain/triton`. `toolchain inspect REF --use` prints"
        " the `COPY` lines.\n"),
        ("Tags: `latest`, and the first 12 digits of the input digest ([several architectures](../architectures.md#what-is-published))."
        " To pin an image, use its digest, which `publish` prints.\n"),
        "## Stages\n",
        table(["stage", "title", "sources by name", "license"], stages),
        "## Labels\n",
        table(["label", "content"], [[f"`{value}`", _OF_LABELS[name]] for name, value in own.items()]),
    ])  # fmt: skip


def prebuilt() -> str:
    """The names for --allow-binary and --drop-binary."""
    rows = [[f"`{one.name}`", one.source, f"`{one.path}`",
             f"the base's own: `{one.replace}`" if one.replace else "refused: 15", _one_line(one.why)]
            for one in known_files()]  # fmt: skip
    return "\n".join([
        "# Prebuilt files by name\n",
        MADE,
        ("Machine code and bitcode in a source tree are found by content, and each file needs a decision. `--allow-binary NAME`"
        " accepts it, and writes the name into label, provenance and SBOM; `--drop-binary NAME` removes it. Files that are not"
        " listed here are named by their path in the tree.\n"),
        table(["name", "source", "file", "without a decision", "what it is"], rows),
        ("| name | what |\n|---|---|\n| `triton-wheel` | the index's wheel of Triton as a source: `--source triton=pypi:3.7.1` |\n"),
        ("`verify --policy source-only` refuses an image with any of these, except those of `verify --allow-binary NAME`.\n"),
    ])  # fmt: skip


def gpus() -> str:
    """GPUs by LLVM's name and by the names that people use."""
    rows = [[f"`{row['name']}`", ", ".join(row["market"]) or "none known", f"`{pack(row['name'])}`"]
            for row in load("gpus")["gpu"]]  # fmt: skip
    assert {row[0].strip("`") for row in rows} == set(known_gpus())  # noqa: S101 - the page says all of them
    assert parse_gpus("MI300X") == ("gfx942",)  # noqa: S101 - the example below
    return "\n".join([
        "# GPUs\n",
        MADE,
        ("`--gpu` takes LLVM names and market names: `--gpu gfx942`, `--gpu MI300X`, `--gpu 'gfx942;RX 7900 XTX'`. Case, spaces,"
        " `-` and `_` are ignored.\n"),
        table(["LLVM's name", "market names", "AOTriton's pack"], rows),
        "Compiling does not need the GPU. No AMD code object was run on a GPU.\n",
    ])  # fmt: skip
