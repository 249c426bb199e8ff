"""The verbs and functions that this package registers with `toolchain`, through an entry point that names `PLUGIN`."""

from __future__ import annotations

from toolchain.core.plugins import Plugin, Verb

PLUGIN = Plugin(
    verbs=(
        Verb("audit", "toolchain_lab.cli.audit_cmd:audit", "List the GPUs, kernels and compilers in any image."),
        Verb(
            "report",
            "toolchain_lab.cli.report_cmd:report",
            "Write an HTML report of a build, campaign, comparison or audit.",
        ),
        Verb("emulate", "toolchain_lab.cli.emulate_cmd:emulate", "Run an AMD code object on the CPU, without a GPU."),
        Verb(
            "kernels check",
            "toolchain_lab.cli.check_cmd:kernels_check",
            "Check the results of compiled kernels, without a GPU.",
        ),
        Verb(
            "kernels diff",
            "toolchain_lab.cli.diff_cmd:kernels_diff",
            "Compare the kernels of two builds: registers, spills, occupancy.",
        ),
        Verb(
            "kernels try",
            "toolchain_lab.cli.try_cmd:kernels_try",
            "Recompile one kernel with another Triton, and compare.",
        ),
    ),
    check="toolchain_lab.numbers.build_check",
    inspect_wheel="toolchain_lab.cli.wheel_view:inspect_wheel",
)
