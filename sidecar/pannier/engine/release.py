"""Gets one archive of a release: asked for by tag, checked by digest.

The release API names each asset with its SHA-256. That digest, or the list of checksums in the same
release, must match what arrives; an archive without any digest is not taken. Addresses are https,
also after a redirect; plain http is for a release server on this very machine. A machine without a
network learns so in seconds, and the second program does not wait again.

Must not: unpack or start what it gets.
"""

import asyncio
import hashlib
import ipaddress
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self
from urllib.parse import urljoin, urlsplit

import aiohttp
import msgspec

from pannier.engine.pins import RELEASES
from pannier.errors import EngineError

CONNECT_SECONDS = 10.0
API_SECONDS = 20.0
DOWNLOAD_SECONDS = 30 * 60.0
MOST_BYTES = 3 << 30

_MOST_JSON = 8 << 20
_MOST_REDIRECTS = 5
_CHUNK = 1 << 18


class Asset(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a release, as the API describes it."""

    name: str
    browser_download_url: str
    size: int = 0
    digest: str | None = None


class _Release(msgspec.Struct, frozen=True, kw_only=True):
    assets: tuple[Asset, ...] = ()


class Releases:
    """The releases of one release server; open it with `async with`."""

    def __init__(self, base: str | None = None, environ: Mapping[str, str] = os.environ) -> None:
        self._base = (base or environ.get("PANNIER_RELEASES") or RELEASES).rstrip("/")
        self._local = _is_loopback(self._base)
        self._unreachable: str | None = None
        self._check(self._base)

    async def __aenter__(self) -> Self:
        """Open the connections."""
        timeout = aiohttp.ClientTimeout(
            total=DOWNLOAD_SECONDS, connect=CONNECT_SECONDS, sock_read=30.0
        )
        # A proxy cannot reach what listens on this machine only.
        # The digest is of the file as it lies there: nobody unpacks it on the way.
        self._session = aiohttp.ClientSession(
            timeout=timeout,
            trust_env=not self._local,
            auto_decompress=False,
            headers={"User-Agent": "pannier", "Accept-Encoding": "identity"},
        )
        return self

    async def __aexit__(self, *_exc: object) -> None:
        """Close the connections."""
        await self._session.close()

    async def assets(self, repo: str, tag: str) -> dict[str, Asset]:
        """What the release *tag* of *repo* offers, by name."""
        if self._unreachable is not None:
            raise EngineError(self._unreachable)
        url = f"{self._base}/repos/{repo}/releases/tags/{tag}"
        try:
            async with asyncio.timeout(API_SECONDS):
                body = await self._text(url, _MOST_JSON)
        except (OSError, TimeoutError, aiohttp.ClientConnectionError) as error:
            host = urlsplit(self._base).netloc
            self._unreachable = f"{host} cannot be reached ({_words(error)})"
            raise EngineError(self._unreachable) from error
        try:
            release = msgspec.json.decode(body, type=_Release)
        except msgspec.MsgspecError as error:
            raise EngineError(f"{url} did not answer with a release") from error
        return {asset.name: asset for asset in release.assets}

    async def fetch(
        self,
        asset: Asset,
        into: Path,
        *,
        others: Mapping[str, Asset],
        on_part: Callable[[float], None] | None = None,
    ) -> Path:
        """Download *asset* into the folder *into*; it is checked when this returns."""
        wanted = await self._digest(asset, others)
        if re.fullmatch(r"[\w.+-]+", asset.name) is None or asset.name.startswith("."):
            raise EngineError(f"the release names a file {asset.name!r}")
        file = into / asset.name
        try:
            found = await self._save(asset, file, on_part)
        except (OSError, TimeoutError, aiohttp.ClientError) as error:
            raise EngineError(f"{asset.name} could not be downloaded: {_words(error)}") from error
        if found != wanted:
            file.unlink()
            raise EngineError(
                f"{asset.name} is not what the release says: SHA-256 {found}, should be {wanted}",
                hint="a broken download, or somebody in between; it was thrown away",
            )
        return file

    async def _digest(self, asset: Asset, others: Mapping[str, Asset]) -> str:
        if asset.digest is not None:
            kind, _, digest = asset.digest.partition(":")
            if kind == "sha256" and re.fullmatch(r"[0-9a-f]{64}", digest):
                return digest
        for name, other in others.items():
            if name.endswith("checksums.txt"):
                try:
                    lines = await self._text(other.browser_download_url, 1 << 20)
                except (OSError, TimeoutError, aiohttp.ClientError) as error:
                    raise EngineError(f"{name} could not be read: {_words(error)}") from error
                for line in lines.decode("utf-8", "replace").splitlines():
                    digest, _, file = line.partition(" ")
                    if file.strip().lstrip("*") == asset.name and len(digest) == 64:
                        return digest.lower()
        raise EngineError(f"the release gives no SHA-256 for {asset.name}, so it is not taken")

    async def _save(self, asset: Asset, file: Path, on_part: Callable[[float], None] | None) -> str:
        digest = hashlib.sha256()
        done = 0
        response = await self._get(asset.browser_download_url)
        async with response:
            total = response.content_length or asset.size
            with file.open("xb") as opened:
                async for chunk in response.content.iter_chunked(_CHUNK):
                    done += len(chunk)
                    if done > MOST_BYTES:
                        raise EngineError(f"{asset.name} is larger than any real archive")
                    digest.update(chunk)
                    opened.write(chunk)
                    if on_part is not None and total:
                        on_part(min(1.0, done / total))
        return digest.hexdigest()

    async def _text(self, url: str, most: int) -> bytes:
        response = await self._get(url)
        async with response:
            body = bytearray()
            async for chunk in response.content.iter_chunked(_CHUNK):
                body += chunk
                if len(body) > most:
                    raise EngineError(f"{url} answered with more than it should")
            return bytes(body)

    async def _get(self, url: str) -> aiohttp.ClientResponse:
        for _ in range(_MOST_REDIRECTS):
            self._check(url)
            response = await self._session.get(url, allow_redirects=False)
            if response.status == 200:
                return response
            target = response.headers.get("Location")
            response.release()
            if response.status not in {301, 302, 303, 307, 308} or target is None:
                raise EngineError(f"{url} answered {response.status}")
            url = urljoin(url, target)
        raise EngineError(f"{url} redirects for ever")

    def _check(self, url: str) -> None:
        if urlsplit(url).scheme == "https" or (self._local and _is_loopback(url)):
            return
        raise EngineError(f"{url} is not https", hint="programs are only taken over https")


def _is_loopback(url: str) -> bool:
    parts = urlsplit(url)
    if parts.scheme != "http":
        return False
    try:
        return ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return parts.hostname == "localhost"


def _words(error: Exception) -> str:
    return "no answer in time" if isinstance(error, TimeoutError) else str(error) or repr(error)
