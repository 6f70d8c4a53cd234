"""Names by which tokens of our servers are passed and stored."""

from __future__ import annotations

TOKEN_FIELD = "k8s-rdma-token"  # noqa: S105 - a name
"""The header field of a token that comes through the API server's proxy, which does not pass on
`Authorization` (`WithAuthentication`, k8s.io/apiserver/pkg/endpoints/filters/authentication.go)."""

TOKENS_SECRET = "k8s-rdma-tokens"  # noqa: S105 - a name
"""The Secret that the chart makes for viewers; its key `tokens` has tokens of its servers, one a line."""
