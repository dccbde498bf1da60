"""The shared buffer of a switch: which frames are kept, when to pause, when to resume.

Each ingress port and priority has an account. Its first bytes come from a reserve of its own,
the next from the shared part, up to a dynamic threshold: a share `alpha` of what is free there
now. A lossless priority pauses its sender at the threshold; what still arrives then goes into
headroom. A lossy one drops at the threshold.

Source: docs/reference/fabric.md#shared-buffer.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from ibwire.base.errors import EncodeError

LEAST_ALPHA, LARGEST_ALPHA = Fraction(1, 256), Fraction(128)

RESUME_OFFSET = 3072
"""Bytes below the threshold at which a paused sender may go on: three packets of 1 KiB."""


class Account:
    """What one priority of an ingress port keeps in the buffer.

    reserve: bytes that are its own. headroom: bytes beyond the threshold, for what arrives after a
    pause; 0 for a lossy priority. alpha: the threshold as a share of the free shared bytes.
    """

    __slots__ = (
        "alpha",
        "headroom",
        "in_headroom",
        "is_lossless",
        "reserve",
        "resume_offset",
        "used",
    )

    def __init__(
        self,
        *,
        reserve: int = 0,
        headroom: int = 0,
        alpha: Fraction = Fraction(1, 8),
        is_lossless: bool = False,
        resume_offset: int = RESUME_OFFSET,
    ) -> None:
        for name, value in (("reserve", reserve), ("headroom", headroom)):
            if value < 0:
                raise EncodeError(name, value, "0 or above")
        if not LEAST_ALPHA <= alpha <= LARGEST_ALPHA:
            raise EncodeError("alpha", str(alpha), "from 1/256 to 128")
        self.reserve = reserve
        self.headroom = headroom
        self.alpha = alpha.as_integer_ratio()
        self.is_lossless = is_lossless
        self.resume_offset = resume_offset
        self.used = 0
        """Bytes in the reserve and in the shared part."""
        self.in_headroom = 0


class BufferTooSmall(EncodeError):
    """Headroom and reserves that leave nothing of the buffer."""

    def __init__(self, size: int, headroom: int, reserve: int) -> None:
        self.size, self.headroom, self.reserve = size, headroom, reserve
        super().__init__(
            "buffer",
            size,
            f"more than {headroom + reserve:,} bytes: headroom of all ports {headroom:,}, "
            f"reserves {reserve:,}",
        )


class SharedBuffer:
    """The bytes of a switch and the accounts that share them.

    size: bytes in all. Raises `BufferTooSmall` where headroom and reserves take all of them.
    """

    __slots__ = ("largest", "shared", "size", "total")

    def __init__(self, size: int, accounts: Iterable[Account]) -> None:
        accounts = list(accounts)
        headroom = sum(each.headroom for each in accounts)
        reserve = sum(each.reserve for each in accounts)
        if headroom + reserve >= size:
            raise BufferTooSmall(size, headroom, reserve)
        self.size = size
        self.total = size - headroom - reserve
        """Bytes of the shared part."""
        self.shared = 0
        """Bytes of the shared part in use."""

    def threshold(self, account: Account) -> int:
        """Bytes of the shared part that the account may use now."""
        numerator, denominator = account.alpha
        return (self.total - self.shared) * numerator // denominator

    def admit(self, account: Account, size: int) -> bool:
        """Keep a frame that has arrived; `False` if there is no room for it."""
        filled = account.used + size
        beyond = filled - account.reserve
        if beyond <= 0:
            account.used = filled
            return True
        numerator, denominator = account.alpha
        free = self.total - self.shared
        taken = min(size, beyond)
        if beyond * denominator <= free * numerator and taken <= free:
            account.used = filled
            self.shared += taken
            return True
        if account.in_headroom + size <= account.headroom:
            account.in_headroom += size
            return True
        return False

    def has_room_for(self, queued: int, alpha: tuple[int, int]) -> bool:
        """Whether a queue may have so many bytes, as a share `alpha` of the free shared bytes."""
        numerator, denominator = alpha
        return queued * denominator <= (self.total - self.shared) * numerator

    def release(self, account: Account, size: int) -> None:
        """Give back the bytes of a frame that leaves: headroom first, then the shared part."""
        over = min(account.in_headroom, size)
        if over:
            account.in_headroom -= over
            size -= over
        beyond = account.used - account.reserve
        if beyond > 0:
            self.shared -= min(size, beyond)
        account.used -= size

    def must_pause(self, account: Account) -> bool:
        """Whether the sender has to stop now."""
        if account.in_headroom:
            return True
        beyond = account.used - account.reserve
        numerator, denominator = account.alpha
        free = self.total - self.shared
        return max(beyond, 0) >= free * numerator // denominator

    def may_resume(self, account: Account) -> bool:
        """Whether a sender that was stopped may go on."""
        if account.in_headroom:
            return False
        beyond = account.used - account.reserve
        return beyond <= 0 or beyond + account.resume_offset <= self.threshold(account)
