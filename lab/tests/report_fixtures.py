"""An invented campaign as large as AOTriton's: the entries of a ledger, and their kernels."""

from __future__ import annotations

import functools
import random

from toolchain.kernels.ledger import DONE, FAILED, TIMEOUT, Entry
from toolchain_lab.examine.facts import Facts
from toolchain_lab.examine.kernels import Kernel

FUNCTIONS = ("attn_fwd", "bwd_kernel_dk_dv", "bwd_kernel_dq", "bwd_kernel_fuse", "bwd_preprocess")
HOSTILE = '</script><img src=x onerror="document.title=1">${x}&amp;'


@functools.cache
def large_campaign(count: int = 19_001) -> tuple[list[Entry], list[Kernel]]:
    """Return entries and kernels with names as long as AOTriton's, one hostile name, and two failures in 4000."""
    made = random.Random(1)
    entries, kernels = [], []
    for at in range(count):
        function, gpu = made.choice(FUNCTIONS), ("gfx942", "gfx1100")[at % 2]
        status = {0: TIMEOUT, 1: FAILED}.get(at % 4000, DONE)
        digest = f"{made.getrandbits(256):064x}"
        options = {"BLOCK_DMODEL": made.choice((16, 32, 48, 64, 128, 256)), "CAUSAL_TYPE": made.choice((0, 3))}
        options |= {"ENABLE_DROPOUT": made.random() < 0.5, "BIAS_TYPE": made.choice((0, 1)), "PADDED_HEAD": at % 3 == 0}
        options |= {"BLOCK_M": made.choice((16, 32, 64, 128)), "BLOCK_N": made.choice((16, 32, 64))}
        told = ",".join(f"{name}={value}" for name, value in options.items())
        name = HOSTILE if at == 7 else f"{function}/FONLY__^bf16@16,{told}___{gpu.upper()}__P__{at}__CO__{digest[:80]}"
        entry = Entry(
            id=digest, kernel=HOSTILE if at == 7 else function, target=gpu, cluster=f"{function}-{at // 8}",
            out=f"flash/amd-{gpu}/{name}.hsaco", status=status, seconds=round(made.lognormvariate(0, 0.8), 2),
            reason="" if status == DONE else f"{status}: {HOSTILE}", sha256=digest if status == DONE else "",
            size=made.randrange(9_000, 80_000) if status == DONE else 0,
        )  # fmt: skip
        entries.append(entry)
        if status == DONE:
            facts = Facts(
                name=entry.kernel, gpu=gpu, code=made.randrange(2_000, 70_000), digest=digest,
                wave=64 if gpu == "gfx942" else 32, threads=made.choice((64, 128, 256)), vgpr=made.randrange(24, 256),
                agpr=0, sgpr=made.randrange(20, 104), vgpr_spills=made.choice((0, 0, 0, 0, 12, 40)), sgpr_spills=0,
                lds=made.choice((0, 8192, 16384, 32768)), scratch=0,
            )  # fmt: skip
            kernels.append(Kernel(key=entry.out, path=entry.out, sha256=digest, facts=facts))
    return entries, kernels
