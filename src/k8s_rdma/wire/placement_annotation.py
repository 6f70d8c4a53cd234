"""The pod annotation `k8s-rdma.io/placement`: the promise to a bound pod, and its node.

The extender writes it in the Binding, the node's agent acts on it. Because everyone who may edit the pod may
edit the annotation as well, it is signed (`wire.placement_keys`); without a key it is a hint only. The
signature, `hmac` or `signature` by the kind of its key, covers the document's canonical encoding: its fields
in the order of `_Document`, without white space and without the signature itself. Of an interface's options
only those that the pod asks for are there.

A Binding is carried out even if it makes a pod's annotations longer than their limit, because the API server
validates them at every write except a Binding (kube-apiserver, BindingREST). A pod that is bound with too
long annotations can never be written to again: its status stays, and its finalizers. So their length is
checked here.

`k8s-rdma.io/rates-status` is the outcome of a change of a running pod's rates. The extender writes it, people
and `k8s-rdma rates` read it; no decision depends on it.

`k8s-rdma.io/claim-caps` is the pod's owner's: it maps names of interfaces by ResourceClaim to caps in Mb/s, 0
for no cap, for example `{"rdma0": 800}`. An interface that it does not name has its claim's cap. The node's
agent writes the outcome to `k8s-rdma.io/claim-caps-status`, as `programmed` or `refused`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, NoReturn

import msgspec

from k8s_rdma.core.options import NO_OPTIONS, OPTIONS, Choices, InterfaceOptions, Syntax, Values, Whole
from k8s_rdma.core.placement import PlacedInterface, Placement, by_entry
from k8s_rdma.core.request import MAX_INTERFACES, PfPolicy
from k8s_rdma.core.types import MAX_RATE_MBPS, Enforce, NodeName, PfSelector, PodUid, pci_address
from k8s_rdma.errors import MalformedError, Reason
from k8s_rdma.wire.json import decode as decode_json
from k8s_rdma.wire.json_faults import shown
from k8s_rdma.wire.report import RatesGeneration

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from k8s_rdma.wire.placement_keys import PlacementKeys, VerifyingKey


_Set = tuple[str, ...]
_Name = Annotated[str, msgspec.Meta(max_length=15)]

_FIELDS = tuple(key for key in OPTIONS if key != "pf")

PLACEMENT_ANNOTATION = "k8s-rdma.io/placement"
PLACEMENT_VERSION: Literal[1] = 1

_Rate = Annotated[int, msgspec.Meta(ge=0, le=MAX_RATE_MBPS)]
_Index = Annotated[int, msgspec.Meta(ge=0)]
_MOST_PFS = 64
_MOST_POOLS = 16
_MOST_PLACES = 16_384
"""The limit for a pod that holds exclusive devices, because a few bytes stand for as many interfaces as there
are PFs."""

_MOST_SHARED = 8
"""The most interfaces of a pod that are shared with those of other pods, all together."""

_MOST_UNVERIFIED = 8 * 1024
"""The longest placement, in characters, that is read before it is verified: 60 interfaces take half of it."""

_WRITTEN = re.compile(
    r'\{"version":1,"node":"([\w.-]+)","uid":"([\w.-]+)",'
    r'(.{1,1024},"(?:signature|hmac)"):"[\w:+/=-]{1,256}"\}',
    re.ASCII,
)
"""A signed document in its signers' writing, unless it is long: node, UID, and the text from there to the
signature, which is one of few."""

_NO_POD, _NO_NODE = PodUid(""), NodeName("")
_GENERATION = re.compile(r'\{"version":1,"node":"[^"]*","uid":"[^"]*","generation":([0-9]{1,16}),')
_NAMES_KEY = re.compile(r'"signature":"ed25519:([0-9a-f]{16}):[^"]*"\}$')
_HAS_HMAC = re.compile(r'"hmac":"[^"]+"\}$')

_encoder = msgspec.json.Encoder()


class WrittenPfSelector(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A `core.types.PfSelector`; each set in order."""

    name: _Set = ()
    pci: _Set = ()
    vendor: _Set = ()
    driver: _Set = ()


_TYPES = {
    Syntax.FLAG: bool,
    Syntax.MAC: Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{2}(:[0-9a-f]{2}){5}\Z")],
    Syntax.GUID: Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{2}(:[0-9a-f]{2}){7}\Z")],
    Syntax.PKEY: Annotated[int, msgspec.Meta(ge=1, le=0xFFFF)],
    Syntax.INTERFACE_NAME: _Name,
    Syntax.NETWORK_NAME: str,
    Syntax.PFS: WrittenPfSelector,
}


def _field(key: str, values: Values) -> tuple[str, Any, Any]:
    """Return the name, the type and the default of a key's field."""
    default = getattr(NO_OPTIONS, key)
    match values:
        case Whole(smallest, largest):
            found: Any = Annotated[int, msgspec.Meta(ge=smallest, le=largest)]
        case Choices(by_word):
            found = type(next(iter(by_word.values())))
        case _:
            found = _TYPES[values]
    return key, found | None if default is None else found, default


if TYPE_CHECKING:

    class Options(msgspec.Struct):
        """A `core.options.InterfaceOptions`, field by field."""

        pf: WrittenPfSelector | None

else:
    Options = msgspec.defstruct(
        "Options",
        [_field(key, row.values) for key, row in OPTIONS.items()],
        module=__name__,
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
        omit_defaults=True,
    )


def options_of(options: InterfaceOptions) -> Options:
    """Convert the options to the document's fields."""
    fields: dict[str, Any] = {field: getattr(options, field) for field in _FIELDS}
    return Options(**fields, pf=None if options.pf is None else _selector_of(options.pf))


def to_core(options: Options) -> InterfaceOptions:
    """Return the options of a document; ValueError if a selector's PCI address is invalid."""
    fields: dict[str, Any] = {field: getattr(options, field) for field in _FIELDS}
    return InterfaceOptions(**fields, pf=None if options.pf is None else _selector(options.pf))


def _selector_of(selector: PfSelector) -> WrittenPfSelector:
    return WrittenPfSelector(
        name=_sorted(selector.names),
        pci=_sorted(selector.pcis),
        vendor=_sorted(selector.vendors),
        driver=_sorted(selector.drivers),
    )


def _selector(selector: WrittenPfSelector) -> PfSelector:
    return PfSelector(
        names=frozenset(selector.name),
        pcis=frozenset(pci_address(pci) for pci in selector.pci),
        vendors=frozenset(selector.vendor),
        drivers=frozenset(selector.driver),
    )


def _sorted(found: Iterable[str]) -> _Set:
    return tuple(sorted(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """A placement and the pod it was made for. key_id: of the key that signed it; empty if not signed."""

    uid: PodUid
    placement: Placement
    key_id: str = ""


class PlacementTerms(NamedTuple):
    """The part of a placement that pods share: all but its pod and its node."""

    interfaces: tuple[PlacedInterface, ...]
    policy: PfPolicy
    generation: int


class _Interface(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """An interface of a placement. pf, pool: indexes; if it is of a pool, kubelet chooses the device.

    entry: which of the pod's interfaces it is, if some may come to any of several PFs.
    previous_min_tx_rate: the largest reservation of earlier generations that may be programmed, in every
        generation except the first.
    """

    pf: str = ""
    min_tx_rate: _Rate
    max_tx_rate: _Rate
    previous_min_tx_rate: _Rate | None = None
    enforce: Enforce = Enforce.AUTO
    options: _Index | None = None
    pool: _Index | None = None
    entry: Annotated[int, msgspec.Meta(ge=0, lt=MAX_INTERFACES)] | None = None


class _Pool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An exclusive resource, and the PFs of the node that have VFs in it."""

    resource: Annotated[str, msgspec.Meta(min_length=1)]
    pfs: Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=_MOST_PFS)]


class _Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Version 1, in the order that signatures cover; a field more or less is another version.

    Some fields are exceptions: an interface's `enforce` (absent if it is `auto`), `options` and `pools`,
    `policy` (absent if it is `any`), `generation` (absent before a change of rates), and `signature` in the
    place of `hmac`. A reader that does not know them refuses a placement that it could not keep or verify,
    and reads all others.

    options: the different ones that interfaces ask for, each once (so that the text is not much longer than
        the request's); an interface's `options` is an index into it.
    pools: of a pod that holds exclusive devices, whose interfaces name no PFs, because kubelet chooses the
        devices.
    """

    version: Literal[1]
    node: str
    uid: str
    generation: RatesGeneration = 0
    interfaces: Annotated[tuple[_Interface, ...], msgspec.Meta(min_length=1, max_length=MAX_INTERFACES)]
    options: Annotated[tuple[Options, ...], msgspec.Meta(max_length=MAX_INTERFACES)] = ()
    policy: PfPolicy = PfPolicy.ANY
    pools: Annotated[tuple[_Pool, ...], msgspec.Meta(max_length=_MOST_POOLS)] = ()
    hmac: str = ""
    signature: str = ""


_decoder = msgspec.json.Decoder(_Document)


def encode(placement: Placement, uid: PodUid, keys: PlacementKeys | None) -> str:
    """Return the annotation's text, signed when there are keys."""
    table: dict[InterfaceOptions, int] = {}
    pools = _pools(placement)
    pool_index = {pool.resource: index for index, pool in enumerate(pools)}
    document = _Document(
        version=PLACEMENT_VERSION,
        node=placement.node,
        uid=uid,
        generation=placement.generation,
        interfaces=tuple(
            _Interface(
                pf="" if interface.pool else interface.pf,
                min_tx_rate=interface.min_tx_rate_mbps,
                max_tx_rate=interface.max_tx_rate_mbps,
                previous_min_tx_rate=interface.previous_min_tx_rate_mbps,
                enforce=interface.enforce,
                options=_index(table, interface.options),
                pool=pool_index.get(interface.pool),
                entry=None if interface.pool else interface.entry,
            )
            for interface in (by_entry(placement.interfaces).values() if pools else placement.interfaces)
        ),
        options=tuple(map(options_of, table)),
        policy=placement.policy,
        pools=pools,
    )
    text = _encoder.encode(document)
    if keys is None:
        return text.decode()
    if keys.signer is None:
        msg = "these keys verify, and none of them signs"
        raise ValueError(msg)
    return f"{text[:-1].decode()}{_ending(keys.signer.document_field, keys.signer.sign(text))}"


def decode(text: str, *, uid: PodUid, node: NodeName, keys: PlacementKeys | None) -> Placement:
    """Return the placement that this very pod was given on this very node. MalformedError as `decode_own`."""
    return decode_own(text, uid=uid, node=node, keys=keys).placement


def decode_own(text: str, *, uid: PodUid, node: NodeName, keys: PlacementKeys | None) -> Promise:
    """Decode the promise of this very pod on this very node.

    MalformedError as `decode_promise`; `STALE_PLACEMENT` if it was made for another pod or node (for example
    an annotation copied along with a pod's manifest, or a pod moved by hand).
    """
    promise = decode_promise(text, keys=keys)
    _require_own((promise.uid, promise.placement.node), uid, node)
    return promise


def _require_own(made_for: tuple[str, str], uid: PodUid, node: NodeName) -> None:
    """Refuse a placement of another pod or node. made_for: its UID and node."""
    if made_for[0] != uid:
        _refuse(f"made for the pod with UID {shown(made_for[0])}, not {uid}", Reason.STALE_PLACEMENT)
    if made_for[1] != node:
        _refuse(f"made for node {shown(made_for[1])}, not {node}", Reason.STALE_PLACEMENT)


def decode_promise(text: str, *, keys: PlacementKeys | None) -> Promise:
    """Return the placement without a check of its pod and node; its writer reads it back with this.

    MalformedError (`MALFORMED_ANNOTATION`) names the field, or says that the signature is absent or wrong.
    Without keys no signature is looked at.
    """
    document = _document(text)
    key_id = "" if keys is None else _verify(text, document, keys).id
    return Promise(uid=PodUid(document.uid), placement=_placement(document), key_id=key_id)


def decode_unverified(text: str, *, uid: PodUid, node: NodeName) -> PlacementTerms | None:
    """Decode the placement of this very pod on this very node, if it may be read before it is verified.

    None for a placement of a later generation, which may stand for less than the node has programmed, and
    for one in which a few bytes stand for many interfaces, or which is long. MalformedError as `decode_own`,
    also for one that is not signed.
    """
    written = _WRITTEN.fullmatch(text)
    if written is not None and written[1] == node and written[2] == uid and (terms := _terms(written[3])):
        return terms
    return _unverified(text, uid=uid, node=node)


@lru_cache(maxsize=4096)
def _terms(text: str) -> PlacementTerms | None:
    """Read the text between UID and signature, which many pods have; None if it may not be read."""
    try:
        return _unverified(f'{{"version":1,"node":"","uid":"",{text}:"-"}}', uid=_NO_POD, node=_NO_NODE)
    except MalformedError:
        return None


def _unverified(text: str, *, uid: PodUid, node: NodeName) -> PlacementTerms | None:
    document = _document(text)
    _require_signature(document)
    if (
        document.generation
        or document.pools
        or len(text) > _MOST_UNVERIFIED
        or document.interfaces[0].entry is not None
    ):
        return None
    placement = _placement(document)
    _require_own((document.uid, document.node), uid, node)
    return PlacementTerms(placement.interfaces, placement.policy, placement.generation)


def signing_key(text: str, keys: PlacementKeys) -> str:
    """Return the id of the key that signed a placement. MalformedError as `decode_promise`."""
    return _verify(text, _document(text), keys).id


def _document(text: str) -> _Document:
    return decode_json(text, _decoder, PLACEMENT_ANNOTATION, Reason.MALFORMED_ANNOTATION)


def _placement(document: _Document) -> Placement:
    shared = None
    if not (document.options or document.pools) and len(document.interfaces) <= _MOST_SHARED:
        shared = _all_plain(document.interfaces)
    return Placement(
        node=NodeName(document.node),
        interfaces=_interfaces(document) if shared is None else shared,
        policy=document.policy,
        generation=document.generation,
    )


def _interfaces(document: _Document) -> tuple[PlacedInterface, ...]:
    table = [_options(options, index) for index, options in enumerate(document.options)]
    if document.pools:
        return tuple(_on_every_pf(document, table))
    if any(interface.entry is not None for interface in document.interfaces):
        return _near_gpus(document, table)
    return tuple(_read(interface, index, table) for index, interface in enumerate(document.interfaces))


def generation_in(text: str) -> int:
    """Read the generation that a placement says it is of, unverified; 0 in any writing but the signers'."""
    found = _GENERATION.match(text)
    return int(found[1]) if found else 0


def key_named_in(text: str) -> str:
    """Return the key that a placement names, unverified: an Ed25519 key's id, `hmac`, or an empty text."""
    if found := _NAMES_KEY.search(text):
        return found[1]
    return "hmac" if _HAS_HMAC.search(text) else ""


def _verify(text: str, document: _Document, keys: PlacementKeys) -> VerifyingKey:
    """Return the key that signed it; an HMAC names no key, so all are tried."""
    _require_signature(document)
    field = "signature" if document.signature else "hmac"
    signature = document.signature or document.hmac
    # The text is nearly always as it was written. To encode the document again takes three times as long.
    body = text.removesuffix(_ending(field, signature))
    key = _signer(keys, field, f"{body}}}".encode(), signature) if len(body) < len(text) else None
    key = key or _signer(keys, field, _canonical(document), signature)
    if key is None:
        _refuse(f"{field}: not made with this cluster's key, or the placement was changed afterwards")
    return key


def _require_signature(document: _Document) -> None:
    if document.hmac and document.signature:
        _refuse("signature: beside an hmac, and a placement has one of them")
    if not (document.hmac or document.signature):
        _refuse("hmac: absent, and this cluster signs placements")


def _canonical(document: _Document) -> bytes:
    return _encoder.encode(msgspec.structs.replace(document, hmac="", signature=""))


def _signer(keys: PlacementKeys, field: str, message: bytes, signature: str) -> VerifyingKey | None:
    for key in keys.accepted:
        if key.document_field == field and key.verify(message, signature):
            return key
    return None


def _ending(field: str, signature: str) -> str:
    """Return the end of a signed document, after the signed part."""
    return f',"{field}":"{signature}"}}'


def _index(table: dict[InterfaceOptions, int], options: InterfaceOptions) -> int | None:
    return None if options == NO_OPTIONS else table.setdefault(options, len(table))


def _pools(placement: Placement) -> tuple[_Pool, ...]:
    pfs: dict[str, dict[str, None]] = {}
    for interface in placement.interfaces:
        if interface.pool:
            pfs.setdefault(interface.pool, {})[interface.pf] = None
    return tuple(_Pool(resource=resource, pfs=tuple(pf)) for resource, pf in pfs.items())


def _on_every_pf(document: _Document, table: Sequence[InterfaceOptions]) -> Iterator[PlacedInterface]:
    """Yield the interfaces that a pod with exclusive devices may get, on every PF."""
    places = sum(len(_pool_of(document, index).pfs) for index in range(len(document.interfaces)))
    if places > _MOST_PLACES:
        _refuse(f"interfaces: on {places} PFs together, which is more than {_MOST_PLACES}")
    for position, interface in enumerate(document.interfaces):
        pool = _pool_of(document, position)
        for pf in pool.pfs:
            candidate = msgspec.structs.replace(interface, pf=pf, pool=None)
            yield replace(_read(candidate, position, table), pool=pool.resource, entry=position)


def _near_gpus(document: _Document, table: Sequence[InterfaceOptions]) -> tuple[PlacedInterface, ...]:
    """Return the interfaces of a pod with some near GPUs, on every PF to which they may come."""
    interfaces = tuple(_read(interface, index, table) for index, interface in enumerate(document.interfaces))
    missing = next((index for index, interface in enumerate(interfaces) if interface.entry is None), None)
    if missing is not None:
        _refuse(f"interfaces[{missing}].entry: absent, and others have one")
    entries = {interface.entry for interface in interfaces}
    if entries != {*range(len(entries))}:
        _refuse(f"interfaces: their entries are not 0 to {len(entries) - 1}")
    return interfaces


def _pool_of(document: _Document, index: int) -> _Pool:
    interface, pools = document.interfaces[index], document.pools
    if interface.pf or interface.pool is None or interface.pool >= len(pools):
        _refuse(f"interfaces[{index}].pool: expected one of the {len(pools)} pools, and no pf")
    return pools[interface.pool]


def _options(options: Options, index: int) -> InterfaceOptions:
    try:
        return to_core(options)
    except ValueError as error:
        _refuse(f"options[{index}].pf.pci: {error}")


def _read(interface: _Interface, index: int, table: Sequence[InterfaceOptions]) -> PlacedInterface:
    shared = _plain(interface) if interface.options is None else None
    return shared or _to_core(interface, index, table)


@lru_cache(maxsize=16_384)
def _all_plain(interfaces: tuple[_Interface, ...]) -> tuple[PlacedInterface, ...] | None:
    """Share the interfaces of all pods that have the same; None if one is refused or has an entry."""
    placed = tuple(interface for interface in map(_plain, interfaces) if interface is not None)
    is_plain = len(placed) == len(interfaces) and all(interface.entry is None for interface in placed)
    return placed if is_plain else None


@lru_cache(maxsize=65_536)
def _plain(interface: _Interface) -> PlacedInterface | None:
    """Return an interface, shared between pods with an equal one, because few differ; None if refused."""
    try:
        return _to_core(interface, 0, ())
    except MalformedError:
        return None


def _to_core(interface: _Interface, index: int, table: Sequence[InterfaceOptions]) -> PlacedInterface:
    path = f"interfaces[{index}]"
    try:
        pf = pci_address(interface.pf)
    except ValueError:
        _refuse(f"{path}.pf: not a PCI address (dddd:bb:dd.f): {shown(interface.pf)}")
    if interface.pool is not None:
        _refuse(f"{path}.pool: {interface.pool} is none of the 0 pools")
    if 0 < interface.max_tx_rate < interface.min_tx_rate:
        _refuse(f"{path}.min_tx_rate: {interface.min_tx_rate} is above max_tx_rate {interface.max_tx_rate}")
    if interface.options is not None and interface.options >= len(table):
        _refuse(f"{path}.options: {interface.options} is none of the {len(table)} options")
    return PlacedInterface(
        pf=pf,
        min_tx_rate_mbps=interface.min_tx_rate,
        max_tx_rate_mbps=interface.max_tx_rate,
        enforce=interface.enforce,
        options=NO_OPTIONS if interface.options is None else table[interface.options],
        entry=interface.entry,
        previous_min_tx_rate_mbps=interface.previous_min_tx_rate,
    )


def _refuse(why: str, reason: Reason = Reason.MALFORMED_ANNOTATION) -> NoReturn:
    msg = f"{PLACEMENT_ANNOTATION}: {why}"
    raise MalformedError(msg, reason=reason)
