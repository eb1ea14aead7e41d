"""Registration of search attributes in Temporal."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.client import Client

from everstep.runtime.embedded.config import SearchAttributeType

VALUE_TYPES: Final[dict[SearchAttributeType, IndexedValueType.ValueType]] = {
    "Text": IndexedValueType.INDEXED_VALUE_TYPE_TEXT,
    "Keyword": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
    "Int": IndexedValueType.INDEXED_VALUE_TYPE_INT,
    "Double": IndexedValueType.INDEXED_VALUE_TYPE_DOUBLE,
    "Bool": IndexedValueType.INDEXED_VALUE_TYPE_BOOL,
    "Datetime": IndexedValueType.INDEXED_VALUE_TYPE_DATETIME,
    "KeywordList": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD_LIST,
}


LIST_PATIENCE: Final = timedelta(seconds=5)


async def find_missing(client: Client, wanted: Mapping[str, SearchAttributeType]) -> Sequence[str]:
    """Return the names of those that the namespace does not have.

    Raises:
        RPCError: The server does not answer, or does not tell this process.
    """
    known = await client.operator_service.list_search_attributes(
        ListSearchAttributesRequest(namespace=client.namespace), retry=True, timeout=LIST_PATIENCE
    )
    return [name for name in wanted if name not in known.custom_attributes]


async def register(client: Client, wanted: Mapping[str, SearchAttributeType]) -> None:
    """Register those that the namespace does not have yet."""
    missing = await find_missing(client, wanted)
    if missing:
        types = {name: VALUE_TYPES[wanted[name]] for name in missing}
        await client.operator_service.add_search_attributes(
            AddSearchAttributesRequest(namespace=client.namespace, search_attributes=types)
        )
