"""S3 through s3fs, in which every request ends within a time. Only imported for an S3 URL."""

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

import s3fs
from fsspec.asyn import sync_wrapper

_T = TypeVar("_T")

REQUEST_S = 60.0
"""The longest that a request may take, with all its attempts."""
_ATTEMPTS = 3


class BoundedS3(s3fs.S3FileSystem):  # type: ignore[misc]
    """s3fs, but a store that takes bytes too slowly, or stops to, is an error.

    aiohttp has a timeout for an answer, and none for a request that is being sent.
    """

    def __init__(self, **options: Any) -> None:
        retries = {"mode": "standard", "total_max_attempts": _ATTEMPTS}
        super().__init__(config_kwargs={"retries": retries}, use_listings_cache=False, **options)

    async def _call_s3(self, *args: Any, **options: Any) -> Any:
        return await _within(REQUEST_S, super()._call_s3(*args, **options))

    call_s3 = sync_wrapper(_call_s3)

    async def _cat_file(self, *args: Any, **options: Any) -> Any:
        return await _within(REQUEST_S, super()._cat_file(*args, **options))


async def _within(seconds: float, request: Awaitable[_T]) -> _T:
    try:
        async with asyncio.timeout(seconds):
            return await request
    except TimeoutError:  # as another kind, or s3fs tries again
        raise ConnectionError(f"not done within {seconds:g} s") from None
