"""The one form of a URL, and invalid ones."""

import pytest
from hypothesis import given, strategies as st

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.storage.contexts import canonical_url


@pytest.mark.parametrize(
    ("url", "canonical"),
    [
        ("HTTP://Shop.Example:80", "http://shop.example/"),
        ("https://shop.example:443/a/../b?x=1#f", "https://shop.example/b?x=1#f"),
        ("https://shop.example:8443/", "https://shop.example:8443/"),
        ("https://shop.example:/x", "https://shop.example/x"),
        ("https://shop.example:0443/x", "https://shop.example/x"),
        ("https://münchen.example/ä b", "https://xn--mnchen-3ya.example/%C3%A4%20b"),
        ("https://\uff33\uff28\uff2f\uff30.example", "https://shop.example/"),
        ("https://[0:0::1]:8080", "https://[::1]:8080/"),
        ("https://[::FFFF:1.2.3.4]/", "https://[::ffff:102:304]/"),
        ("https://1.2.3.4/", "https://1.2.3.4/"),
        ("https://1.2.3.4./", "https://1.2.3.4/"),
        ("https://4.example./", "https://4.example./"),
        ("https://fa\u00df.example/", "https://xn--fa-hia.example/"),
        ("https://FA\u1e9e\u3002example/", "https://xn--fa-hia.example/"),
        ("https://\u03bf\u03b4\u03cc\u03c2.example/", "https://xn--pxavk3b.example/"),
        ("https://\u039f\u0394\u038c\u03a3.example/", "https://xn--pxavn9a.example/"),
        ("https://shop.example?q=a b[]", "https://shop.example/?q=a%20b[]"),
        ("https://shop.example/#a#b", "https://shop.example/#a%23b"),
        ("https://shop.example//a//", "https://shop.example//a//"),
        ("/orders/./7", "/orders/7"),
        ("/orders/7/..", "/orders/"),
        ("/../x", "/x"),
        ("/a//b", "/a//b"),
        ("/a%2fb%7e%zz", "/a%2Fb~%25zz"),
        ("/a?x=//y", "/a?x=//y"),
        ("/a/<b>\"'", "/a/%3Cb%3E%22'"),
        ("  /x  ", "/x"),
        ("/", "/"),
    ],
)
def test_a_url_has_one_form(url: str, canonical: str) -> None:
    """8.2.6"""
    assert canonical_url(url) == canonical
    assert canonical_url(canonical) == canonical


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "one slash"),
        ("orders/7", "one slash"),
        ("?x", "one slash"),
        ("//evil.example", "one slash"),
        ("///evil.example", "one slash"),
        ("/.//evil.example", "one slash"),
        ("/a/..//evil.example", "one slash"),
        ("/%2e%2e//evil.example", "one slash"),
        ("javascript:alert(1)", "one slash"),
        ("JaVaScRiPt://shop.example/%0aalert(1)", "one slash"),
        ("data:text/html,x", "one slash"),
        ("ftp://shop.example/", "one slash"),
        ("http:/x", "one slash"),
        ("http:x", "one slash"),
        ("/\\evil.example", "backslash"),
        ("https:\\\\evil.example", "backslash"),
        ("/a\nb", "control"),
        ("/\t/evil.example", "control"),
        ("java\x00script:x", "NUL"),
        ("/a\x7f", "control"),
        ("/a\u202eb", "control"),
        ("/a\u2066b", "control"),
        ("/a\u200bb", "control"),
        ("/a\u2028b", "control"),
        ("https://user:password@shop.example/", "names a user"),
        ("https://user@shop.example/", "names a user"),
        ("https://@shop.example/", "names a user"),
        ("https://", "no valid host"),
        ("https:///x", "no valid host"),
        ("https://a..b/", "no valid host"),
        ("https://ex ample/", "no valid host"),
        ("https://ex%61mple/", "no valid host"),
        ("https://shop.example:x/", "no valid host"),
        ("https://shop.example:0/", "no valid host"),
        ("https://shop.example:65536/", "no valid host"),
        ("https://shop.example:" + "9" * 5000, "characters"),
        ("https://[::1/", "no valid host"),
        ("https://[x]/", "no valid host"),
        ("https://[fe80::1%25eth0]/", "no valid host"),
        ('https://[::1%"onerror=x]/', "no valid host"),
        ("https://0x7f.1/", "no valid host"),
        ("https://127.1/", "no valid host"),
        ("https://2130706433/", "no valid host"),
        ("https://01.2.3.4/", "no valid host"),
        ("https://a.0x/", "no valid host"),
        ("https://\u2488example/", "no valid host"),
        ("https://" + "\u00df" * 64 + ".example/", "no valid host"),
        ("https://\u00df\u2488/", "no valid host"),
        ("https://\u00df\u2100/", "no valid host"),
        ("https://℀.example/", "no valid host"),
        ("https://" + "a" * 300 + ".example/", "no valid host"),
        ("/" + "a" * 2000, "2001 characters"),
        ("/" + "ä" * 1500, "9001 characters"),
    ],
)
def test_an_invalid_link_is_refused(url: str, words: str) -> None:
    """8.2.6"""
    with pytest.raises(InvalidInput, match=words) as raised:
        canonical_url(url, "initial_context_url")
    assert "initial_context_url" in str(raised.value)


@given(
    st.text(st.characters(), max_size=40),
    st.sampled_from(["", "/", "https://", "https://[", "https://[::1%", "http://a/", "//"]),
)
def test_an_accepted_link_is_canonical(text: str, start: str) -> None:
    """8.2.6"""
    try:
        canonical = canonical_url(start + text)
    except InvalidInput:
        return
    assert canonical_url(canonical) == canonical
    assert canonical.isascii()
    assert canonical.isprintable()
    assert not set(canonical) & set("\"'<>\\ `") - {"'"}
    assert canonical.startswith(("http://", "https://", "/"))
    assert not canonical.startswith("//")
