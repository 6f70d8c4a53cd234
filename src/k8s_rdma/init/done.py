"""What was done on a PF, in all tries together."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Done:
    """Counts that grow as things are done, so that what fails later does not hide them.

    made: VFs that there are since, None while nobody changed their number. settings: on VFs. bound: VFs given
    to their driver. named: netdevs. notes: one sentence each.
    """

    made: int | None = None
    settings: int = 0
    bound: int = 0
    named: int = 0
    brought_up: bool = False
    notes: tuple[str, ...] = ()

    def changes(self) -> tuple[str, ...]:
        """`7 made`, `7 bound`."""
        counts = (
            ("made", self.made or 0),
            ("settings", self.settings),
            ("bound", self.bound),
            ("named", self.named),
        )
        removed = ("all removed",) if self.made == 0 else ()
        up = ("PF up",) if self.brought_up else ()
        return (*removed, *(f"{count} {what}" for what, count in counts if count), *up)

    def words(self) -> str:
        """The changes and the notes."""
        return "; ".join(filter(None, [", ".join(self.changes()), *self.notes]))
