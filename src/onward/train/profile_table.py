"""The tables of a profile, on a terminal and on a page: layers, or kinds of operators."""

from __future__ import annotations

from onward.train.profile import LayerTime, OperatorKind, Profile
from onward.train.profile_units import TimeUnit, amount


def table_head(profile: Profile, *, kinds: bool) -> tuple[str, ...]:
    """Return the names of the columns."""
    unit = profile.unit.name
    first = ("operator", "calls", unit) if kinds else ("layer", "operator", f"forward {unit}", f"backward {unit}")
    return (*first, "share", "FLOP", "bytes", "of peak")


def table_row(each: LayerTime | OperatorKind, unit: TimeUnit) -> tuple[str, ...]:
    """Return the cells of a layer, or of a kind of operators."""
    first: tuple[str, ...]
    if isinstance(each, LayerTime):
        first = (each.name, each.operator, unit.number(each.forward), unit.number(each.backward))
    else:
        first = (each.operator, str(each.calls), unit.number(each.seconds))
    return (
        *first,
        f"{each.share:.1%}",
        amount(each.operations) if each.operations else "",
        amount(each.bytes),
        "" if each.of_peak is None else f"{each.of_peak:.0%}",
    )
