"""Names of topics and namespaces. The expected values are what Apache Pulsar 4.2.4
answers, but for the two corners that topic_name.py names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyxbroker.base import topic_name
from pyxbroker.base.errors import InvalidTopicName
from pyxbroker.base.topic_name import NamespaceName, TopicName
from pyxbroker.broker.topics.names import topic_of_node


@pytest.mark.parametrize(
    ("written", "full"),
    [
        ("t", "persistent://public/default/t"),
        ("t ", "persistent://public/default/t "),
        ("a/b/t", "persistent://a/b/t"),
        ("persistent://a/b/c", "persistent://a/b/c"),
        ("non-persistent://a/b/c", "non-persistent://a/b/c"),
        ("persistent://a/b:c=.-_/t", "persistent://a/b:c=.-_/t"),
        ("persistent://a/b/c:d", "persistent://a/b/c:d"),
        ("PERSISTENT://a/b/c", "persistent://a/b/c"),
        ("persistent://a/b/c\n", "persistent://a/b/c\n"),
    ],
)
def test_a_name_has_a_full_form(written: str, full: str) -> None:
    name = TopicName.get(written)
    assert str(name) == full
    assert TopicName.get(full) == name


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("", "blank"),
        (" ", "blank"),
        ("persistent://a/b/", "blank"),
        ("..", "no name of a node"),
        ("non-persistent://a/b/.", "no name of a node"),
        ("a/b", "a short name is topic or tenant/namespace/topic"),
        ("a/b/c/d", "a short name"),
        ("/", "a short name"),
        ("persistent://", "it has the form domain://tenant/namespace/topic"),
        ("persistent://a/b", "it has the form"),
        ("persistent://a/b/c/d", "names with a cluster"),
        ("persistent://a/b/c/d/e", "names with a cluster"),
        ("persistent://a/b/c://d", "names with a cluster"),
        ("persistent://a//c", "its namespace ''"),
        ("a//c", "its namespace ''"),
        ("persistent:///b/c", "its tenant ''"),
        ("persistent://a b/b/c", "its tenant 'a b'"),
        ("persistent://ü/b/c", "its tenant 'ü'"),
        ("persistent://a\n/b/c", "its tenant"),
        ("persistent://./b/c", "its tenant '.'"),
        ("persistent://a/../c", "its namespace '..'"),
        ("foo://a/b/c", "the domain 'foo' is neither"),
        ("://a/b/c", "the domain '' is neither"),
        ("topic://a/b/c", "the domain 'topic' is neither"),
    ],
)
def test_what_is_no_name_is_refused_with_a_sentence(written: str, said: str) -> None:
    with pytest.raises(InvalidTopicName) as refused:
        TopicName.get(written)
    assert said in str(refused.value)
    assert str(refused.value).endswith(".")


@pytest.mark.parametrize("local", ["", " ", "c/d", "/"])
def test_a_name_of_parts_is_looked_at_like_one_that_was_written(local: str) -> None:
    """REST has the parts, and may have decoded a slash in the last one."""
    with pytest.raises(InvalidTopicName, match="the part after the namespace"):
        TopicName("persistent", NamespaceName("a", "b"), local)


def test_a_huge_wrong_name_is_not_repeated_whole() -> None:
    with pytest.raises(InvalidTopicName) as refused:
        TopicName.get("x/" * 100_000)
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize(
    ("local", "index", "base"),
    [
        ("c-partition-0", 0, "c"),
        ("c-partition-3", 3, "c"),
        ("t-partition-3-partition-4", 4, "t-partition-3"),
        ("x-partition-2147483647", 2147483647, "x"),
        ("x-partition-2147483648", -1, "x-partition-2147483648"),
        ("x-partition-99999999999", -1, "x-partition-99999999999"),
        ("x-partition-", -1, "x-partition-"),
        ("x-partition-x", -1, "x-partition-x"),
        ("x-partition--1", -1, "x-partition--1"),
        ("x-partition-+3", -1, "x-partition-+3"),
        ("x-partition-03", -1, "x-partition-03"),
        ("x-partition-00", -1, "x-partition-00"),
        ("x-partition-0 ", -1, "x-partition-0 "),
        ("x", -1, "x"),
        ("-partition-1", -1, "-partition-1"),
    ],
)
def test_a_partition_is_read_from_the_names_end(local: str, index: int, base: str) -> None:
    name = TopicName.get(f"non-persistent://a/b/{local}")
    assert (name.partition_index, name.is_partitioned) == (index, index >= 0)
    assert name.partitioned_topic_name == f"non-persistent://a/b/{base}"
    assert name.schema_name == f"a/b/{base}".replace("+", "%2B").replace(" ", "+")


def test_partitions_of_a_topic() -> None:
    name = TopicName.get("t")
    assert str(name.partition(2)) == "persistent://public/default/t-partition-2"
    assert name.partition(2).partition_index == 2
    assert name.partition(2).partition(5) == name.partition(2)


@pytest.mark.parametrize(
    ("local", "encoded"),
    [
        ("ü ~*+%.-_x", "%C3%BC+%7E*%2B%25.-_x"),
        ("c:d", "c%3Ad"),
        ("c\n", "c%0A"),
        ("x-partition-٣", "x-partition-%D9%A3"),
        ("plain-0.9_A", "plain-0.9_A"),
    ],
)
def test_the_encoded_name_is_what_java_writes(local: str, encoded: str) -> None:
    name = TopicName.get(f"persistent://a/b/{local}")
    assert name.encoded_local_name == encoded
    assert name.managed_ledger_name == f"a/b/persistent/{encoded}"


def test_the_parts_of_a_name() -> None:
    name = TopicName.get("non-persistent://tenant/ns/topic")
    assert (name.domain, name.tenant, name.namespace_portion) == ("non-persistent", "tenant", "ns")
    assert (name.namespace, name.local_name) == ("tenant/ns", "topic")
    assert name.namespace_name == NamespaceName.get("tenant/ns")
    assert not name.is_persistent
    assert TopicName.get("t").is_persistent


def _is_part(text: str) -> bool:
    return text.isascii() and text not in (".", "..")


@given(
    st.sampled_from(["persistent", "non-persistent"]),
    st.from_regex(r"[-=:.\w]+", fullmatch=True).filter(_is_part),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/"), min_size=1),
)
def test_a_managed_ledgers_name_leads_back_to_its_topic(domain: str, part: str, local: str) -> None:
    if local.isspace() or local in (".", ".."):
        return
    name = TopicName.get(f"{domain}://{part}/{part}/{local}")
    assert (name.domain, name.tenant, name.local_name) == (domain, part, local)
    *namespace, of, encoded = name.managed_ledger_name.split("/")
    assert topic_of_node(of, "/".join(namespace), encoded) == name


@given(st.text(max_size=30))
def test_any_text_is_a_name_or_is_refused(text: str) -> None:
    try:
        name = TopicName.get(text)
    except InvalidTopicName:
        return
    assert TopicName.get(str(name)) == name


def test_a_name_written_again_is_the_same_object() -> None:
    assert TopicName.get("cached") is TopicName.get("cached")
    assert len({TopicName.get("cached"), TopicName.get("persistent://public/default/cached")}) == 1


def test_the_cache_keeps_to_its_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    cache: dict[str, TopicName] = {}
    monkeypatch.setattr(topic_name, "_cache", cache)
    monkeypatch.setattr(topic_name, "CACHED_NAMES_MAX", 3)
    for i in range(5):
        TopicName.get(f"t{i}")
    TopicName.get("x" * (topic_name.CACHED_NAME_LENGTH_MAX + 1))
    assert list(cache) == ["t2", "t3", "t4"]


@pytest.mark.parametrize("written", ["", "a", "a/b/c", "/b", "a/", "a b/c", "a/ü"])
def test_what_is_no_namespace_is_refused(written: str) -> None:
    with pytest.raises(InvalidTopicName, match="is not a namespace"):
        NamespaceName.get(written)


def test_a_namespace_and_its_parts() -> None:
    name = NamespaceName.get("pulsar/system")
    assert (str(name), name.tenant, name.local_name) == ("pulsar/system", "pulsar", "system")
    assert len({name, NamespaceName("pulsar", "system")}) == 1
