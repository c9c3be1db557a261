"""What is asked of an object store that speaks S3: small objects, large ones in pieces, lists, and creation by one."""

import errno
import fnmatch
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cohyde.errors import UserError

SCHEME = "s3://"
PIECE_BYTES = 16 << 20
"""Of what is read at once."""
AT_ONCE = 8
"""Objects that are moved or removed side by side."""
PAGE = 1000
"""Objects that one request lists or removes: as many as S3 takes."""
RETRY_SECONDS = 1.0
BUSY = {errno.EBUSY, getattr(errno, "EREMOTEIO", errno.EIO)}
"""What s3fs makes of a service's own errors, and of two who create one object at once."""
KEYS = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or AWS_PROFILE)"


class AwayError(UserError, OSError):
    """The object store does not answer, or refuses: an error of input and output that a person can do something about.

    Being an :class:`OSError`, it does not end what survives a file system that is away for a moment.
    """


@dataclass(frozen=True, kw_only=True)
class Item:
    """One object, as lists have it."""

    key: str
    """Below the prefix."""
    size: int
    """Bytes."""
    time: float
    """Seconds since the epoch, by the service's clock."""


class Bucket:
    """The objects below one prefix of a bucket."""

    def __init__(self, url: str) -> None:
        """Nothing is asked yet.

        Raises:
            UserError: it is no such URL, or what speaks to S3 is not installed.
        """
        parts = urlsplit(url)
        if "@" in parts.netloc:  # not repeated here: it may be a secret
            raise UserError(
                "the URL of --store holds a name or a key", f"give --store s3://BUCKET/PREFIX, and set {KEYS}"
            )
        if not url.startswith(SCHEME) or not parts.netloc or parts.query or parts.fragment:
            raise UserError(f"{url!r} is no place in an object store", "give --store s3://BUCKET/PREFIX")
        try:
            import s3fs
        except ImportError:
            raise UserError(f"{url}: s3fs is not installed", "pip install 'cohyde[s3]'") from None
        self.patience = 0.0
        """Seconds for which an answer is waited for, beyond what the libraries do themselves."""
        self.name, self.prefix = parts.netloc, parts.path.strip("/")
        self.url = f"{SCHEME}{self.name}/{self.prefix}".rstrip("/")
        # Lists are never remembered: what others have written is what is asked for.
        self._files = s3fs.S3FileSystem(use_listings_cache=False)

    def read(self, key: str) -> bytes:
        """The whole of a small object.

        Raises:
            FileNotFoundError: there is none.
            AwayError: it cannot be known.
        """
        content: bytes = self._ask(key, lambda: self._files.cat_file(self._path(key)))
        return content

    def write(self, key: str, content: bytes) -> None:
        """Write an object, whole, over an older one."""
        self._call(key, "put_object", Key=self._key(key), Body=content)

    def create(self, key: str, content: bytes) -> bool:
        """Write an object if there is none; whether it was us. Of many who do, one wins: the service sees to that."""
        try:
            self._call(key, "put_object", Key=self._key(key), Body=content, IfNoneMatch="*")
        except FileExistsError:
            # Also where our first request was carried out and its answer lost; then what is there is ours.
            return self.read(key) == content
        return True

    def look(self, key: str) -> Item | None:
        """An object's size and time; None where there is none."""
        try:
            found = self._call(key, "head_object", Key=self._key(key))
        except FileNotFoundError:
            return None
        return Item(key=key, size=found["ContentLength"], time=found["LastModified"].timestamp())

    def items(self, below: str = "") -> Iterator[Item]:
        """All objects whose key begins so."""
        for page in self._pages(below, ""):
            for found in page.get("Contents", []):
                when = found["LastModified"].timestamp()
                yield Item(key=self._own(found["Key"]), size=found["Size"], time=when)

    def names(self, below: str = "") -> list[str]:
        """What the next part of the keys is that begin with ``below``, a folder with its slash or nothing."""
        found: list[str] = []
        for page in self._pages(below, "/"):
            keys = [one["Key"] for one in page.get("Contents", [])]
            keys += [one["Prefix"] for one in page.get("CommonPrefixes", [])]
            found += [self._own(key).removeprefix(below).rstrip("/") for key in keys]
        return sorted(filter(None, found))

    def remove(self, keys: Sequence[str]) -> None:
        """Remove objects; those that are not there are none."""
        for first in range(0, len(keys), PAGE):
            some = [{"Key": self._key(key)} for key in keys[first : first + PAGE]]
            answer = self._call(keys[first], "delete_objects", Delete={"Objects": some, "Quiet": True})
            for fault in answer.get("Errors", []):
                raise AwayError(f"{SCHEME}{self.name}/{fault['Key']}: {fault['Message']}", _remedy("AccessDenied"))

    def upload(self, file: Path, key: str) -> None:
        """Write a file's content, of any size."""
        self._ask(key, lambda: self._files.put_file(str(file), self._path(key)))

    def pieces(self, key: str, size: int) -> Iterator[bytes]:
        """The content of an object of this size, piece by piece."""
        for start in range(0, size, PIECE_BYTES):
            yield self._piece(key, start, min(start + PIECE_BYTES, size))

    def _piece(self, key: str, start: int, end: int) -> bytes:
        piece: bytes = self._ask(key, lambda: self._files.cat_file(self._path(key), start=start, end=end))
        return piece

    # ------------------------------------------------------------------------------------------------------ asking

    def _key(self, key: str) -> str:
        return f"{self.prefix}/{key}" if self.prefix else key

    def _own(self, key: str) -> str:
        return key[len(self.prefix) + 1 :] if self.prefix else key

    def _path(self, key: str) -> str:
        return f"{self.name}/{self._key(key)}"

    def _pages(self, below: str, delimiter: str) -> Iterator[dict[str, Any]]:
        asked = {"Prefix": self._key(below), "Delimiter": delimiter, "MaxKeys": PAGE}
        more: dict[str, str] | None = {}
        while more is not None:
            page = self._call(below, "list_objects_v2", **asked, **more)
            yield page
            more = {"ContinuationToken": page["NextContinuationToken"]} if page.get("IsTruncated") else None

    def _call(self, key: str, method: str, **arguments: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self._ask(key, lambda: self._files.call_s3(method, Bucket=self.name, **arguments))
        return answer

    def _ask(self, key: str, call: Callable[[], Any]) -> Any:
        """Call, again and again where nobody answers or has the time.

        That an object is not there, or is there already, stays what it is.
        """
        from botocore.exceptions import BotoCoreError, ClientError, ConnectionError, HTTPClientError

        end = time.monotonic() + self.patience
        while True:
            try:
                return call()
            except (OSError, BotoCoreError, ClientError) as error:
                answer = error if isinstance(error, ClientError) else error.__cause__
                code = answer.response["Error"].get("Code", "") if isinstance(answer, ClientError) else ""
                if code != "NoSuchBucket" and isinstance(error, (FileNotFoundError, FileExistsError)):
                    raise
                unheard = isinstance(error, (ConnectionError, HTTPClientError, TimeoutError))
                busy = isinstance(error, OSError) and error.errno in BUSY
                if not (unheard or busy) or time.monotonic() >= end:
                    raise _away(f"{self.url}/{key}" if key else self.url, self.name, code, error) from None
            time.sleep(RETRY_SECONDS)


def _away(url: str, bucket: str, code: str, error: BaseException) -> AwayError:
    if code == "NoSuchBucket":
        return AwayError(f"there is no bucket {bucket!r}", _remedy(code))
    name = type(error).__name__
    reason = f"{code or name}: {' '.join(str(error).split())}"
    return AwayError(f"{url}: {reason}", _remedy("AccessDenied" if isinstance(error, PermissionError) else name))


def _remedy(what: str) -> str:
    """What to set, by the error's name; what it is set to is never shown."""
    remedies = {
        "NoSuchBucket": "make it, or name another: --store s3://BUCKET/PREFIX; AWS_ENDPOINT_URL says which service",
        "AccessDenied": f"set {KEYS} to what may list, read, write and remove objects there",
        "NoCredentialsError": f"set {KEYS}",
        "PartialCredentialsError": f"set {KEYS}",
        "EndpointConnectionError": "nobody answers: set AWS_ENDPOINT_URL if the service is not Amazon's",
    }
    return remedies.get(what, f"check {KEYS}, AWS_ENDPOINT_URL and AWS_DEFAULT_REGION")


def side_by_side(work: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    """Results of the work on each, several at once."""
    if not items:
        return []
    with ThreadPoolExecutor(min(AT_ONCE, len(items))) as pool:
        return list(pool.map(work, items))


class BucketFolder:
    """A :class:`~cohyde.dag.places.Place` below a prefix of a bucket."""

    def __init__(self, bucket: Bucket, key: str = "") -> None:
        """``key``: of the folder, without a slash at its end."""
        self.bucket, self.key = bucket, key

    def __str__(self) -> str:
        return f"{self.bucket.url}/{self.key}".rstrip("/")

    def _of(self, name: str) -> str:
        return f"{self.key}/{name}" if self.key else name

    def names(self) -> list[str]:
        """See :class:`~cohyde.dag.places.Place`."""
        return self.bucket.names(self._of(""))

    def times(self, pattern: str) -> dict[str, float]:
        """See :class:`~cohyde.dag.places.Place`."""
        begin = self._of("")
        found = {item.key.removeprefix(begin): item.time for item in self.bucket.items(begin)}
        depth = pattern.count("/")
        return {
            name: when for name, when in found.items() if name.count("/") == depth and fnmatch.fnmatch(name, pattern)
        }

    def exists(self, name: str) -> bool:
        """See :class:`~cohyde.dag.places.Place`."""
        return self.bucket.look(self._of(name)) is not None

    def age(self, name: str) -> float:
        """See :class:`~cohyde.dag.places.Place`."""
        found = self.bucket.look(self._of(name))
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "no such object", f"{self}/{name}")
        return datetime.now(UTC).timestamp() - found.time

    def read(self, name: str) -> str:
        """See :class:`~cohyde.dag.places.Place`."""
        return self.bucket.read(self._of(name)).decode("utf-8")

    def write(self, name: str, text: str) -> None:
        """See :class:`~cohyde.dag.places.Place`."""
        self.bucket.write(self._of(name), text.encode("utf-8"))

    replace = write

    def touch(self, name: str) -> None:
        """See :class:`~cohyde.dag.places.Place`."""
        self.write(name, "")

    def refresh(self, name: str) -> None:
        """See :class:`~cohyde.dag.places.Place`."""
        self.write(name, self.read(name))

    def create(self, name: str, text: str, token: str) -> bool:
        """See :class:`~cohyde.dag.places.Place`. The token is in the text."""
        return self.bucket.create(self._of(name), text.encode("utf-8"))

    def claim(self, name: str) -> bool:
        """See :class:`~cohyde.dag.places.Place`. A folder is there if something is in it."""
        return self.bucket.create(self._of(f"{name}/claimed"), secrets.token_bytes(8))

    def remove(self, name: str) -> None:
        """See :class:`~cohyde.dag.places.Place`."""
        self.bucket.remove([self._of(name)])

    def clear(self) -> None:
        """See :class:`~cohyde.dag.places.Place`."""
        self.bucket.remove([item.key for item in self.bucket.items(self._of(""))])

    def below(self, name: str) -> "BucketFolder":
        """See :class:`~cohyde.dag.places.Place`."""
        return BucketFolder(self.bucket, self._of(name))
