"""What IREE compiles for: `iree:cpu`, `iree:android-arm64` and so on, each with its flags."""

from __future__ import annotations

import dataclasses

from onward.arguments import check_name
from onward.errors import A101, ArgumentError, Diagnostic

# IREE would otherwise compute float64 in float32, in silence.
EXACT = ("--iree-input-type=onnx", "--iree-input-demote-f64-to-f32=false")
NARROW_INTEGERS = "--iree-input-demote-i64-to-i32"
_CPU = ("--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu")


@dataclasses.dataclass(frozen=True)
class Target:
    """One kind of machine. `here`: the binary is for this very machine, so that it can be tried."""

    name: str
    flags: tuple[str, ...]
    about: str
    here: bool = False
    library: bool = False
    """Whether it is a static library and C, for a machine without files, instead of a module to load."""

    @property
    def is_processor(self) -> bool:
        """Whether it is a processor with memory to spare: neither a graphics card nor a microcontroller."""
        return not self.library and not self.name.startswith("vulkan")


HOST = Target("cpu", (*_CPU, "--iree-llvmcpu-target-cpu=host"), "the processor of this machine", here=True)
_TARGETS = {
    t.name: t
    for t in (
        HOST,
        Target(
            "android-arm64",
            (*_CPU, "--iree-llvmcpu-target-triple=aarch64-linux-android30", "--iree-llvmcpu-target-cpu=generic"),
            "64-bit ARM: Android, and Linux such as that of a Raspberry Pi",
        ),
        Target(
            "riscv64",
            (
                *_CPU,
                "--iree-llvmcpu-target-triple=riscv64-linux-gnu",
                "--iree-llvmcpu-target-cpu=generic-rv64",
                "--iree-llvmcpu-target-abi=lp64d",
                "--iree-llvmcpu-target-cpu-features=+m,+a,+f,+d,+c",
            ),
            "64-bit RISC-V with Linux",
        ),
        Target(
            "cortex-m",
            (
                *_CPU,
                "--iree-llvmcpu-target-triple=thumbv7em-none-eabihf",
                "--iree-llvmcpu-target-cpu=cortex-m7",
                "--iree-llvmcpu-target-float-abi=hard",
                "--iree-llvmcpu-target-cpu-features=+fp-armv8d16,+thumb-mode",
                "--iree-llvmcpu-link-embedded=false",
                "--iree-llvmcpu-link-static",
                "--iree-stream-partitioning-favor=min-peak-memory",
                "--output-format=vm-c",
            ),
            "a Cortex-M7 microcontroller: a static library and C",
            library=True,
        ),
    )
}
TARGETS = (*_TARGETS, "vulkan:NAME")


def find_target(text: str, *, narrow_integers: bool = False) -> Target:
    """Return the target that `iree`, `iree:cpu`, `iree:vulkan:ampere` and the like name.

    With `narrow_integers`, all int64 is computed in 32 bits.

    Raises:
        ArgumentError: there is no such target; the message lists those that there are.

    >>> find_target("iree").name, find_target("iree:vulkan:ampere").flags[-1]
    ('cpu', '--iree-vulkan-target=ampere')
    """
    tool, _, name = text.partition(":")
    check_name("tool of a target", tool, ("iree",))
    if name.startswith("vulkan"):
        device = name.partition(":")[2]
        if not device.replace("-", "").replace("_", "").isalnum():
            raise ArgumentError(
                Diagnostic(
                    A101,
                    "a Vulkan target needs the name of an architecture or a product",
                    found=f"`{text}`",
                    needed="iree:vulkan:NAME, such as iree:vulkan:ampere, iree:vulkan:rdna3 or iree:vulkan:adreno",
                )
            )
        found = Target(
            name, ("--iree-hal-target-device=vulkan", f"--iree-vulkan-target={device}"), f"Vulkan on {device}"
        )
    else:
        check_name("target of IREE", name or "cpu", TARGETS)
        found = _TARGETS[name or "cpu"]
    flags = (*EXACT, *((NARROW_INTEGERS,) if narrow_integers else ()), *found.flags)
    return dataclasses.replace(found, flags=flags)
