"""The words of messages: the function of the full-text index, which is built after the revisions.

The function never fails: an index that refuses a value refuses the insert. So it reads 50,000 characters,
whose words fit into a `tsvector` several times over.

PostgreSQL's parser makes one word of an address or a path, and of a sentence in a script without spaces. So
the characters that join words become spaces before, and characters of such scripts get spaces around them.
What `everstep.agent_domain.storage.text_query` says of words has to agree with it.

Indexes are built, and databases restored, with an empty search path: the body names nothing outside of
`pg_catalog`.
"""

from functools import reduce

from alembic import op

revision = "0024_search_words"
down_revision = "0023_sign_in_authorities"

_INVISIBLE = r"\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff"
_PUNCTUATION = (
    r"\u0080-\u00a9\u00ab-\u00b4\u00b6-\u00b9\u00bb\u00bf\u00d7\u00f7\u2010-\u2029\u202f-\u205f\u20a0-\u20cf"
    r"\u2190-\u2bff\u3000-\u3004\u3008-\u3020\u3030\uff00-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65"
)
_UNSPACED = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
    r"\U00020000-\U0003ffff"
)
_JOINING = "./-+_@:&<~"

_SPACED = reduce(lambda said, each: f"replace({said}, '{each}', ' ')", _JOINING, "said")

CREATE_FUNCTION = rf"""
    CREATE FUNCTION agent_search_vector(tenant_id text, role text, content json, metadata json)
    RETURNS tsvector LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE COST 2000 AS $$
    DECLARE
        -- The content that every viewer may read, of a message that quotes an error.
        said text := metadata ->> 'told';
        called text;
    BEGIN
        IF said IS NULL AND json_typeof(content) = 'string' THEN
            said := content #>> '{{}}';
        ELSIF said IS NULL AND json_typeof(content) = 'array' THEN
            said := (SELECT string_agg(part ->> 'text', E'\n') FROM json_array_elements(content) AS part);
        END IF;
        IF role = 'assistant' AND json_typeof(metadata -> 'tool_calls') = 'array' THEN
            called := (SELECT string_agg(concat_ws(E'\n', call -> 'function' ->> 'name',
                                                   call -> 'function' ->> 'arguments'), E'\n')
                         FROM json_array_elements(metadata -> 'tool_calls') AS call);
            -- The arguments are JSON in a text, whose escapes would be letters of words.
            called := replace(replace(called, '\\', ' '), '\n', ' ');
            called := replace(replace(called, '\t', ' '), '\r', ' ');
            said := concat_ws(E'\n', said, called);
        END IF;
        said := coalesce(left(said, 50000), '');
        IF octet_length(said) > length(said) THEN
            said := regexp_replace(said, '[{_INVISIBLE}]+', '', 'g');
            said := regexp_replace(said, '[{_PUNCTUATION}]+', ' ', 'g');
            said := regexp_replace(said, '([{_UNSPACED}])', ' \1 ', 'g');
        END IF;
        RETURN to_tsvector('pg_catalog.simple',
                           {_SPACED})
               || array_to_tsvector(ARRAY[md5(tenant_id)]);
    END $$
"""  # noqa: S608 -- constants only


def upgrade() -> None:
    """Apply the revision."""
    op.execute(CREATE_FUNCTION)
