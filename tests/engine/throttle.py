"""Makes a load slow: a relay to a ggml-rpc-server that lets weights through at a chosen rate.

    python throttle.py LISTEN TARGET BYTES_PER_SECOND

Only what flows towards the device waits; answers come back untouched, and so does the first MiB of
a burst, so that commands stay quick. SIGUSR1 lifts the limit for good: what is loading then is
there in a moment. Everything is on 127.0.0.1.
"""

import asyncio
import contextlib
import signal
import sys
import time

_FREE = 1 << 20
_CHUNK = 1 << 16


class Relay:
    """Relays connections to `target` until it is cancelled."""

    def __init__(self, target: int, rate: float) -> None:
        self._target = target
        self._rate = rate
        self._lifted = asyncio.Event()

    def lift(self) -> None:
        self._lifted.set()

    async def serve(self, listen: int) -> None:
        server = await asyncio.start_server(self._connection, "127.0.0.1", listen)
        async with server:
            print("listening", flush=True)
            await server.serve_forever()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._target)
        await asyncio.gather(
            self._pump(reader, back, slow=True),
            self._pump(there, writer, slow=False),
            return_exceptions=True,
        )

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, slow: bool
    ) -> None:
        start, sent = time.monotonic(), 0
        try:
            while chunk := await reader.read(_CHUNK):
                writer.write(chunk)
                await writer.drain()
                sent += len(chunk)
                if not slow or sent <= _FREE or self._lifted.is_set():
                    continue
                behind = (sent - _FREE) / self._rate - (time.monotonic() - start)
                if behind > 0:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._lifted.wait(), behind)
                elif behind < -0.2:
                    start, sent = time.monotonic(), _FREE
        finally:
            writer.close()


async def _main(listen: int, target: int, rate: float) -> None:
    relay = Relay(target, rate)
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, relay.lift)
    await relay.serve(listen)


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
