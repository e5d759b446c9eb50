"""Times, operations and bytes of a profile as people read them."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class TimeUnit:
    """A unit for all times of a profile."""

    name: str
    seconds: float
    digits: int

    def number(self, seconds: float) -> str:
        """Return a time without its unit."""
        return f"{seconds / self.seconds:,.{self.digits}f}"

    def text(self, seconds: float) -> str:
        """Return a time with its unit."""
        if seconds >= 1:
            return f"{seconds:.3g} s"
        number = seconds / self.seconds
        return f"{number:,.0f} {self.name}" if number >= 1000 else f"{number:.3g} {self.name}"


def time_unit(step: float) -> TimeUnit:
    """Return the unit for the times of a step.

    >>> time_unit(11.1e-6).text(11.1e-6), time_unit(11.1e-6).number(0.4e-6), time_unit(1e-6).text(0.001234)
    ('11.1 µs', '0.4', '1,234 µs')
    """
    return TimeUnit("µs", 1e-6, 1) if step < 1e-3 else TimeUnit("ms", 1e-3, 3)


def amount(number: float, unit: str = "") -> str:
    """Return a number of operations or bytes with three digits.

    >>> amount(128, "FLOP"), amount(46_080_000), amount(2.5e9, "B")
    ('128 FLOP', '46.1 M', '2.5 GB')
    """
    for size, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= 0.9995 * size:
            return f"{number / size:.3g} {prefix}{unit}"
    return f"{number:.3g} {unit}".rstrip()


def memory(size: float) -> str:
    """Return a number of bytes in MiB, or KiB where these are few.

    >>> memory(1884), memory(6_300_000)
    ('1.8 KiB', '6.0 MiB')
    """
    return f"{size / 2**20:,.1f} MiB" if size >= 2**20 else f"{size / 2**10:.1f} KiB"
