"""The prices of units and places: a footprint before the split is known.

A planner that looks for a split wants to know what one more unit costs a device, thousands of
times. The bytes of a unit do not depend on where it is, and those of a place not on its units
(compute is the widest stage of any layer), so a split's footprint is a sum of these prices.

Must not: differ from `footprint` by a byte.
"""

from pannier.gguf.footprint.launch import alone, launch_of, overhead_of, place_bytes
from pannier.gguf.footprint.profile import Profile
from pannier.gguf.footprint.values import LaunchSettings, Prices


def prices(profile: Profile, settings: LaunchSettings) -> Prices:
    """The prices of `profile` launched with `settings` on one device (`alone`) or on several.

    The backends are those of `settings.devices` in their order, the last one repeated as needed;
    `middle` is priced as the second. Without devices every price is of the host's kind: no units.
    """
    if not settings.devices:
        return Prices(units=(), alone=0, first=0, middle=0, last=0)
    several = launch_of(profile, settings, 2)
    single = alone(several)
    on, caches = several.weights[several.start :], several.caches[several.start :]
    units = tuple(map(int.__add__, on, caches)) if settings.kv_offload else tuple(on)
    final = len(settings.devices) - 1
    return Prices(
        units=units,
        alone=sum(place_bytes(profile, single, True, True)) + overhead_of(settings, 0),
        first=sum(place_bytes(profile, several, True, False)) + overhead_of(settings, 0),
        middle=sum(place_bytes(profile, several, False, False)) + overhead_of(settings, 1),
        last=sum(place_bytes(profile, several, False, True)) + overhead_of(settings, max(1, final)),
    )
