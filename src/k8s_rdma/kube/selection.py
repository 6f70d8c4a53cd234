"""Options of a command line that choose the API server and its user, as kubectl has them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeconfigSelection:
    """Options of a command; None for those that are absent.

    file: the only kubeconfig.
    context, cluster, user: names of its entries; cluster and user take precedence over those of the context.
    namespace: of objects that are named without one.
    """

    file: str | None = None
    context: str | None = None
    cluster: str | None = None
    user: str | None = None
    namespace: str | None = None

    @classmethod
    def from_file(cls, kubeconfig: KubeconfigSelection | str | None) -> KubeconfigSelection:
        """Return the selection, or that of a file alone."""
        return kubeconfig if isinstance(kubeconfig, cls) else cls(file=kubeconfig)  # type: ignore[arg-type]

    @property
    def is_explicit(self) -> bool:
        """Report whether the user named the API server, so that one which cannot be used is an error."""
        return any((self.file, self.context, self.cluster, self.user))

    def arguments(self) -> list[str]:
        """Return the same options for kubectl, without the namespace."""
        options = {
            "--kubeconfig": self.file,
            "--context": self.context,
            "--cluster": self.cluster,
            "--user": self.user,
        }
        return [word for option, value in options.items() if value for word in (option, value)]


USUAL_KUBECONFIG = KubeconfigSelection()
"""The choice of kubectl without any of these options."""
