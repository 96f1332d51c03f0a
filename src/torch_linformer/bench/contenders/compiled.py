"""Contenders whose module torch.compile makes into kernels for one case, launched one by one or as CUDA graphs."""

from dataclasses import replace

from torch_linformer.bench.suite import Case, Compilation, Contender, Workload

# "reduce-overhead" replays the kernels of a step as one CUDA graph; neither mode tries out matrix products, which takes
# minutes ("max-autotune").
MODES: dict[Compilation, str] = {"compiled": "default", "CUDA graphs": "reduce-overhead"}


def compiled(contender: Contender) -> list[Contender]:
    """The contender, compiled for the shapes of each case, in every way of :data:`MODES`."""
    return [_compiled(contender, compilation) for compilation in MODES]


def compiled_name(name: str, compilation: Compilation) -> str:
    """What a contender is called when it is compiled."""
    return f"{name}, {compilation}"


def _compiled(contender: Contender, compilation: Compilation) -> Contender:
    def build(case: Case) -> Workload:
        if compilation == "CUDA graphs" and case.device != "cuda":
            raise ValueError(f"CUDA graphs need a CUDA device, not {case.device}")
        workload = contender.build(case)
        # One graph of all of it, or an error: what torch leaves out of a graph is no compiled contender.
        workload.module.compile(fullgraph=True, dynamic=False, mode=MODES[compilation])
        return workload

    return replace(contender, name=compiled_name(contender.name, compilation), build=build, compilation=compilation)
