"""Items that a provider needs back unchanged, such as its reasoning. They are stored with the answer.

Items are opaque: signed or encrypted by one model at one address, and refused by every other. So they carry
their origin, and are used only while they match the message that they came with. If the message was edited,
or another model takes over, only the message is sent.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.messages.messages import PROVIDER_ITEMS, Message
from everstep.agent_domain.values import FrozenDict, FrozenList, freeze, thaw
from everstep.inference.json_reading import Json


def bundle_items(origin: str, items: Sequence[Mapping[str, Any]]) -> FrozenList:
    """The items in the form of `InferenceResponse.items`; items that no store can hold are dropped."""
    try:
        frozen = freeze(list(items), "provider items")
    except InvalidInput:
        # Changing a character would break their signature; the conversation works without them.
        return FrozenList()
    return FrozenList([FrozenDict(origin=origin, items=frozen)]) if frozen else FrozenList()


def own_items(origin: str, message: Message) -> list[Json]:
    """The items of this origin that came with a message."""
    bundles: Sequence[Any] = message.metadata.get(PROVIDER_ITEMS) or ()
    items: list[Json] = []
    for bundle in bundles:
        if isinstance(bundle, Mapping) and cast("Mapping[str, Any]", bundle).get("origin") == origin:
            items.extend(thaw(cast("Mapping[str, Any]", bundle).get("items") or []))
    return items


def matches_message(message: Message, text: str, call_ids: Sequence[Any]) -> bool:
    """Whether items with this text and these calls still match the message.

    The message may have no text although the items do: text that only repeats the arguments of a call is
    dropped from the conversation. Blank lines between the parts of a text are ignored.
    """
    same_text = not message.text or message.text.split() == text.split()
    return same_text and [call.get("id") for call in message.calls] == list(call_ids)
