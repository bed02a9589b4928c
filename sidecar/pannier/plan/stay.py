"""What runs stays as it is, wherever that costs nothing that counts more.

The search knows where each item runs, and moves few of them. That is not enough: which items share
a swap set, and how many layers each device of a split has, is part of what would be started anew.
So the groups that run are tried as they are, each as one block of memory with only what is new
placed around them; where that serves as much as the best placement does, it is taken.

Must not: keep anything alive at the price of a resident, a context or a device.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from pannier.plan.items import Item, Way, devices_of
from pannier.plan.pack import LIMIT, Packing, Spot, left, pack
from pannier.plan.wide import bytes_on


class _Kept(msgspec.Struct, frozen=True):
    """An item where it runs; `layers` of a split."""

    item: Item
    way: Way
    layers: tuple[int, ...] | None = None


def stay(
    running: Iterable[Sequence[str]],
    items: Sequence[Item],
    splits: Mapping[str, tuple[int, ...]],
    best: Packing,
    *,
    capacity: Sequence[int],
    host: int,
    limit: int = LIMIT,
) -> Packing | None:
    """The packing with the groups that run as they are, if it is as good as the best one.

    `running` are the members of each group, `splits` the units per device of what is split now.
    """
    free = {item.id: item for item in items}
    blocks: dict[str, list[_Kept]] = {}
    for members in running:
        found = [_kept(free[member], splits.get(member)) for member in members if member in free]
        kept = [each for each in found if each is not None]
        if kept:
            blocks[kept[0].item.id] = kept
            for each in kept:
                del free[each.item.id]
    if not blocks:
        return None
    solid = [_block(name, kept) for name, kept in blocks.items()]
    packing = pack([[*solid, *free.values()]], capacity, host, limit=limit)
    if packing is None:
        return None
    pooled, shared, extra = (
        paid + sum(column)
        for paid, column in zip(packing.cost[:3], zip(*map(_inside, blocks.values()), strict=True),
                                strict=True)
    )  # fmt: skip
    if (pooled, shared, extra) > best.cost[:3]:
        return None
    spots = {name: spot for name, spot in packing.spots.items() if name not in blocks}
    for name, kept in blocks.items():
        spots |= {each.item.id: _spot(each, packing.spots[name].group) for each in kept}
    return msgspec.structs.replace(
        packing,
        level=best.level,
        cost=(pooled, shared, extra, packing.cost[3]),
        spots=spots,
        rooms=left(spots.values(), capacity),
    )


def _kept(item: Item, split: tuple[int, ...] | None) -> _Kept | None:
    """An item where it runs, if it can be there still."""
    wide = item.wide
    if wide is not None:
        units = len(wide.prefix) - 1
        fits = split is not None and len(split) == len(item.home) and sum(split) == units
        if split is None or not fits or not set(item.home) <= set(wide.devices):
            return None
        return _Kept(item, tuple(zip(item.home, bytes_on(wide, split), strict=True)), split)
    ways = [way for way in item.ways if devices_of(way) == item.home]
    if not item.home and len(item.ways) == 1:
        ways = list(item.ways)  # in RAM, which has no name of its own
    return _Kept(item, ways[0]) if ways else None


def _block(name: str, kept: Sequence[_Kept]) -> Item:
    """A group as one item: what its largest members take."""
    charge: dict[int, int] = {}
    for each in kept:
        for device, need in each.way:
            charge[device] = max(charge.get(device, 0), need)
    return Item(
        id=name,
        ways=(tuple(sorted(charge.items())),),
        host=max(each.item.host for each in kept),
        pooled=len(kept) == 1 and kept[0].item.pooled,
        keep=any(each.item.keep for each in kept),
    )


def _inside(kept: Sequence[_Kept]) -> tuple[int, int, int]:
    """What a block costs by itself, in the first three numbers of `Cost`."""
    shares = len(kept) > 1
    pooled = sum(each.item.pooled for each in kept) if shares else 0
    extra = sum(len(each.layers) - 1 for each in kept if each.layers is not None)
    return pooled, len(kept) - 1, extra


def _spot(kept: _Kept, group: int) -> Spot:
    return Spot(
        id=kept.item.id,
        group=group,
        devices=devices_of(kept.way),
        taken=tuple(need for _, need in kept.way),
        layers=kept.layers,
    )
