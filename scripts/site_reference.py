"""Make the reference pages from the code: verbs, configuration, names, prebuilt files, GPUs."""

from __future__ import annotations

from typing import Any

from scripts import json_keys
from scripts.options_table import commands, tables
from scripts.site_compatibility import MADE, table
from toolchain.catalog.aotriton_generations import pack
from toolchain.catalog.gpus import known_gpus, parse_gpus
from toolchain.catalog.stages import STAGES
from toolchain.cli.config_file import forms
from toolchain.cli.verbs import all_verbs
from toolchain.data import load
from toolchain.oci import labels
from toolchain.stages.prebuilt import known_files


def _one_line(text: str) -> str:
    return " ".join(text.replace("\\[", "[").split())


def verbs() -> str:
    """Return the content of docs/reference/verbs.md: verbs, options, the configuration file and the environment."""
    found = commands()
    lines = [[_call(verb.name, found[verb.name]), _told(verb.brief, found[verb.name])] for verb in all_verbs()]
    of_builds, of_verbs = tables()
    forms_of = {kind: f"`{form}`" for kind, form in forms().items()}
    head = ["option", "meaning, and *verbs*", "also set by"]
    return "\n".join([
        "# Verbs, options, configuration and JSON\n",
        MADE,
        ("`toolchain VERB --help` describes a verb, and `toolchain --install-completion` completes verbs, options and names in your"
         " shell.\n"),
        "## Verbs\n",
        (f"STAGE is {_listed([one.name for one in STAGES])} or `all`. If a verb is called without one, `stage` in toolchain.toml is used;"
         " without that key `kernels run` and `kernels worker` take `kernels`, the verbs with `[STAGE]` take `all`, and others end with 2. IMAGE is the name or input digest of a finished image (`toolchain images`),"
         " or a unique prefix of either. REF is `oci:DIR[:TAG]` or `REGISTRY/NS/NAME[:TAG|@DIGEST]`.\n"),
        table(["verb", "what it does"], lines),
        "## Options of builds\n",
        ("\"Verbs of builds\" are `plan`, `fetch`, `lock`, `build`, `reproduce`, `kernels run` and `bundle export`. \"Variable\" is the"
         " environment variable `TOOLCHAIN_` and the name in capitals: `TOOLCHAIN_KERNEL_TIMEOUT` for `--kernel-timeout`. \"File\" is a"
         " [configuration file](#configuration-file) that you name, \"any file\" also a `toolchain.toml` in the current folder,"
         " \"known names\" that such a file may only have versions and names that the tool knows. A \"recorded\" option decides what is"
         " built, so records, locks and provenance contain it.\n"),
        table(head, of_builds),
        "## Options of single verbs\n",
        ("`--key` is the private key of `publish`. `--public-key` is the key that signatures are verified with. `--kernel-key` is the key"
         " of a kernel store; a private one also signs new results.\n"),
        table(head, of_verbs),
        "## Configuration file\n",
        ("`toolchain --config FILE VERB` or `TOOLCHAIN_CONFIG` names a TOML file whose keys are options without dashes, and `stage`."
         " Relative paths are relative to its folder. A verb ignores the keys of other verbs.\n"),
        ("```toml\nstage = \"aotriton\"\naotriton = \"0.13b\"\ngpu = [\"gfx942\", \"gfx1100\"]\n"
         "drop-binary = [\"libdevice\"]\n```\n"),
        (f"A value is text or a number. It is {forms_of['names']} for options that can be repeated, `true` for switches, and"
         f" {forms_of['pairs']} for `source` and `patch`.\n"),
        ("The command line overrides the environment, the environment overrides the file, and the file overrides the default. Options of"
         " different names never override each other: `--aotriton` and a `TOOLCHAIN_TRITON` that mean different Tritons are refused.\n"),
        ("Without `--config` the tool reads `toolchain.toml` in the current folder, but no file of a parent folder. That file may come from"
         " someone else, as after `git clone`, so it cannot decide whose code, keys, paths or registries are used: a key that is not"
         " \"any file\" above ends with exit code 3. The example needs `--config` because of `drop-binary`.\n"),
        "## Environment\n",
        "Values of repeatable options are separated by spaces. Variables that are not options:\n",
        table(["variable", "what"], [
            ["`TOOLCHAIN_KEY_PASSPHRASE`", "passphrase of the private key, for `keygen` and `publish`"],
            ["`TOOLCHAIN_LIMITS`", "limits of a container, `NAME=VALUE,…`: [isolation](../isolation.md#limits-of-a-container)"],
            ["`TOOLCHAIN_LOCK_TIMEOUT`", "seconds to wait for another invocation: 86400; 0 does not wait"],
            ["`TOOLCHAIN_CONFIG`", "as `--config`"],
            ["`TOOLCHAIN_LLVM_OBJDUMP`", "llvm-objdump of `build --check`, `kernels check` and `emulate`; as `--objdump`"],
            ["`REGISTRY_AUTH_FILE`, `DOCKER_CONFIG`", "files with logins, read before `~/.docker/config.json`"],
        ]),
        json_keys.section(),
    ])  # fmt: skip


def _call(name: str, command: Any) -> str:
    """Return a verb with its arguments, formatted as code."""
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    words = [str(one.metavar or (one.name or "").rstrip("_").upper()).strip("[]") for one in arguments]
    pairs = zip(arguments, words, strict=True)
    call = " ".join([name, *(word if one.required else f"[{word}]" for one, word in pairs)])
    # GitHub and the site treat a bar as the end of a table cell, even in backquotes.
    return f"<code>{call.replace('|', '&#124;')}</code>" if "|" in call else f"`{call}`"


def _told(brief: str, command: Any) -> str:
    """Return the help texts of a verb, and of its arguments other than STAGE, IMAGE and REF."""
    told = [_one_line(command.help or brief)]
    for one in command.params:
        if one.param_type_name == "argument" and one.help and not one.help.startswith(_KNOWN):
            told.append(f"{one.metavar or (one.name or '').rstrip('_').upper()}: {_one_line(one.help)}")
    return "<br>".join(told).replace("|", "\\|")


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


# The help texts of STAGE, IMAGE and REF begin with these words. The page explains these arguments only once.
_KNOWN = (
    "base, sysroot",
    "kernels, aotriton or",
    "Name or input digest",
    "Name of a finished",
    "oci:DIR[:TAG] or REGISTRY/NS/NAME[:TAG|",
)
_OF_LABELS = {
    "CREATED": "a fixed time, so that images stay equal",
    "TITLE": "title for display",
    "REVISION": "commit of the main source",
    "LICENSES": "SPDX expression of what is in the layer",
    "INPUT_DIGEST": "SHA-256 of everything that decides the bytes; its first 12 digits are a tag of the image",
    "BINARIES": "prebuilt inputs that were accepted by name",
    "PARTIAL": "what is missing, in a partial image",
    "GPUS": "the GPUs of the kernels",
    "TRITON": "version and commit of the Triton inside or below, if known",
    "LLVM": "version and commit of the LLVM inside or below, if known",
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
    "CACHE_MCV_KEY": "Triton's own part of its cache keys, as MCV reads it; not set from Triton 3.6 on",
    "CACHE_TRITON_PATH": "the folder of that Triton's package",
}


def names() -> str:
    """Return the content of docs/reference/names.md: names of images, tags and labels."""
    sources = "; ".join(
        f"{_listed(sorted(one.sources))} for stage `{one.name}` ({one.license or 'the licenses of the packages'})"
        for one in STAGES
        if one.sources
    )
    own = {name: value for name, value in vars(labels).items() if name.isupper() and not name.startswith("_")}
    return "\n".join([
        "# Names\n",
        MADE,
        ("Names of [images](#images), [sources](#sources), [labels](#labels), [GPUs](#gpus) and [prebuilt files](#prebuilt-files).\n"),
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
        ("TRITON is the first eight digits of Triton's commit, or the version of the index's wheel. BASE is the base's name; for your own image (`--base oci:mybase`) it is `local-` and the first eight digits of its"
         " manifest's digest, as in `llvm-triton-f6ded0be-local-0123abcd`.\n"),
        ("The path in the image never contains the base or the part: `llvm-triton-f6ded0be-debian13` and"
        " `llvm-triton-tablegen-f6ded0be` both have `/usr/lib64/llvm-triton-f6ded0be`. AOTriton's is `/usr/lib64/aotriton-HASH8-GPUS`,"
        " FlashAttention's `/usr/lib64/flash-attn-kernels`, Triton's `/usr/lib/toolchain/triton`. `toolchain inspect REF --use` prints"
        " the `COPY` lines.\n"),
        ("Tags: `latest`, and the first 12 digits of the input digest ([several architectures](../portable.md#tags-of-an-index))."
        " To pin an image, use its digest, which `publish` prints.\n"),
        "## Sources\n",
        (f"`--source NAME=…` and `--patch NAME=…` take these names: {sources}. Other stages are made of packages.\n"),
        "## Labels\n",
        table(["label", "content"], [[f"`{value}`", _OF_LABELS[name]] for name, value in own.items()]),
        *_gpus(),
        *_prebuilt(),
    ])  # fmt: skip


def _gpus() -> list[str]:
    rows = [[f"`{row['name']}`", ", ".join(row["market"]) or "none known", f"`{pack(row['name'])}`"]
            for row in load("gpus")["gpu"]]  # fmt: skip
    assert {row[0].strip("`") for row in rows} == set(known_gpus())  # noqa: S101 - the page must list all GPUs
    assert parse_gpus("MI300X") == ("gfx942",)  # noqa: S101 - the page contains this example
    return [
        "## GPUs\n",
        ("`--gpu` takes LLVM names and market names: `--gpu gfx942`, `--gpu MI300X`, `--gpu 'gfx942;RX 7900 XTX'`. Case, spaces,"
         " `-` and `_` are ignored. Compiling does not need the GPU.\n"),
        table(["LLVM's name", "market names", "AOTriton's pack"], rows),
    ]  # fmt: skip


def _prebuilt() -> list[str]:
    rows = [[f"`{one.name}`", f"`{one.path}`", f"the base's `{one.replace.rpartition('/')[2]}`" if one.replace else "refused: 15",
             _one_line(one.why)] for one in known_files()]  # fmt: skip
    rows.append(
        ["`triton-wheel`", "`--source triton=pypi:3.7.1`", "refused: 15", "the index's wheel of Triton as a source"]
    )
    return [
        "## Prebuilt files\n",
        ("The tool finds machine code and bitcode in a source tree by content, and each file needs a decision. `--allow-binary NAME`"
         " accepts it, and writes the name into label, provenance and SBOM; `--drop-binary NAME` removes it. A file that is not"
         " listed here is named by its path in the tree. All files below are in Triton's tree. The base's bitcode is in"
         " `/usr/lib/llvm-*/lib/clang/*/amdgcn/bitcode/`.\n"),
        table(["name", "file", "without a decision", "what it is"], rows),
        ("`verify --policy source-only` refuses an image with any of these, except those of `verify --allow-binary NAME`.\n"),
    ]  # fmt: skip
