"""A row of readiness in words, the same in the terminal and in the chat. Pure.

Must not: hold markup of any kind; some readers show these words as they are.
"""

from pannier.serve.shapes import Row

_STAGES = {
    "queued": "waits",
    "making_room": "waits for room",
    "starting": "starting",
    "weights": "reading weights",
    "projector": "reading the projector",
    "draft": "reading the draft model",
    "warming_up": "warming up",
}

_CHAT = {
    "queued": "{model} waits for its turn",
    "making_room": "Making room for {model}: {other} leaves",
    "draining": "Waiting until {model} has stopped",
    "starting": "Starting {model}",
    "projector": "Loading the projector of {model}",
    "draft": "Loading the draft model of {model}",
    "warming_up": "Warming up {model}",
}


def bar(fraction: float, width: int) -> str:
    """A bar of `width` characters; full only when all is done."""
    full = int(max(0.0, min(1.0, fraction)) * width + 1e-9)
    return "▰" * full + "▱" * (width - full)


def what(row: Row) -> str:
    """What happens to a model now, or how its load ended."""
    if row.state == "failed" and row.error is not None:
        return f"failed: {row.error.text()}"
    if row.state == "ready":
        return f"ready after {row.elapsed_s or 0:.1f} s"
    if row.stage == "making_room" and row.making_room:
        return f"waits for {row.making_room} to make room"
    return _STAGES.get(row.stage or "", row.state)


def amount(row: Row) -> str | None:
    """Bytes read of all, in the unit that suits them; None where they are not known."""
    if row.bytes_done is None or not row.bytes_total:
        return None
    if row.bytes_total >= 10**9:
        return f"{row.bytes_done / 1e9:.1f} of {row.bytes_total / 1e9:.1f} GB"
    return f"{row.bytes_done / 1e6:.0f} of {row.bytes_total / 1e6:.0f} MB"


def remaining(row: Row) -> str | None:
    """Seconds left, when they are known and it loads."""
    if row.eta_s is None or row.state != "loading":
        return None
    return f"about {row.eta_s:.0f} s left"


def chat_line(row: Row) -> str:
    """One line for a chat, in the words of the plugin: what happens, bar, bytes, seconds left."""
    if row.state == "ready":
        return f"{row.id} is ready after {row.elapsed_s or 0:.0f} s"
    if row.state == "failed":
        return f"{row.id} could not be loaded"  # the reason follows, as the error of the answer
    doing = _CHAT.get(row.stage or row.state, "Loading {model}")
    words = doing.format(model=row.id, other=row.making_room or "another model")
    if row.fraction is None:
        return words
    parts = [f"{words} {bar(row.fraction, 10)} {row.fraction * 100:.0f}%"]
    if row.stage != "warming_up":
        size = amount(row)
        parts += [size.replace(" of ", "/")] if size else []
        parts += [f"{row.eta_s:.0f} s left"] if row.eta_s is not None else []
    return " · ".join(parts)
