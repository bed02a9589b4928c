"""Whether a packing may be carried out, and what it costs, read off its spots alone."""

from collections.abc import Sequence

from pannier.plan.items import Item
from pannier.plan.pack import Packing, Spot


def faults(
    packing: Packing, items: Sequence[Item], capacity: Sequence[int], host: int
) -> list[str]:
    """What is wrong with it, in words; empty when all is right."""
    by_id = {item.id: item for item in items}
    found = []
    if set(packing.spots) != set(by_id):
        return [f"placed {sorted(packing.spots)} of {sorted(by_id)}"]
    sets = members(packing)
    for number, spots in sets.items():
        if len(spots) > 1 and any(by_id[spot.id].keep for spot in spots):
            found.append(f"set {number} has a member that is never swapped out")
    used = [0] * len(capacity)
    for spots in sets.values():
        for device in range(len(capacity)):
            used[device] += max(_on(spot, device) for spot in spots)
    found += [f"device {d} has {u} of {capacity[d]}" for d, u in enumerate(used) if u > capacity[d]]
    if packing.rooms != tuple(size - u for size, u in zip(capacity, used, strict=True)):
        found.append(f"rooms {packing.rooms} beside {used} used")
    ram = sum(max(by_id[spot.id].host for spot in spots) for spots in sets.values())
    if ram > host or packing.host_room != host - ram:
        found.append(f"RAM {ram} of {host}, said to leave {packing.host_room}")
    wide = [
        {device for spot in spots for device in spot.devices}
        for spots in sets.values()
        if any(by_id[spot.id].wide for spot in spots)
    ]
    if sum(map(len, wide)) > len(set().union(*wide)):
        found.append(f"sets of split models share devices: {wide}")
    return found + [f"{item.id}: {fault}" for item in items if (fault := _fault(item, packing))]


def cost(packing: Packing, items: Sequence[Item]) -> tuple[int, int, int, int]:
    """The four costs, counted anew."""
    by_id = {item.id: item for item in items}
    sets = members(packing).values()
    pooled = sum(by_id[spot.id].pooled for spots in sets if len(spots) > 1 for spot in spots)
    joins = sum(len(spots) - 1 for spots in sets)
    extra = sum(len(packing.spots[item.id].devices) - 1 for item in items if item.wide)
    moved = sum(bool(i.home) and packing.spots[i.id].devices != i.home for i in items)
    return pooled, joins, extra, moved


def members(packing: Packing) -> dict[int, list[Spot]]:
    """The spots of each set."""
    sets: dict[int, list[Spot]] = {}
    for spot in packing.spots.values():
        sets.setdefault(spot.group, []).append(spot)
    return sets


def _on(spot: Spot, device: int) -> int:
    return dict(zip(spot.devices, spot.taken, strict=True)).get(device, 0)


def _fault(item: Item, packing: Packing) -> str | None:
    """Whether an item has its own way, or a split that adds up."""
    spot = packing.spots[item.id]
    if item.wide is None:
        way = tuple(zip(spot.devices, spot.taken, strict=True))
        return None if way in item.ways else f"{way} is no way of it"
    wide, layers = item.wide, spot.layers or ()
    if list(spot.devices) != sorted(set(spot.devices) & set(wide.devices)) or len(layers) < 2:
        return f"split over {spot.devices}"
    if min(layers) < 1 or sum(layers) != len(wide.prefix) - 1 or len(layers) != len(spot.devices):
        return f"units {layers}"
    ends = [sum(layers[:n]) for n in range(len(layers) + 1)]
    places = [wide.place[0], *[wide.place[1]] * (len(layers) - 2), wide.place[2]]
    taken = tuple(
        wide.prefix[ends[n + 1]] - wide.prefix[ends[n]] + places[n] for n in range(len(layers))
    )
    return None if taken == spot.taken else f"takes {taken}, said to take {spot.taken}"
