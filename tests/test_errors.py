"""Errors and the codes that clients switch on."""

from __future__ import annotations

import re

import pytest

from pyxbroker.base import errors
from pyxbroker.base.log import get_logger
from pyxbroker.broker.refusals import refusal_of
from pyxbroker.metadata.store import MetadataError
from pyxbroker.metadata.turns import WaitedTooLong
from pyxbroker.proto import PulsarApi as pb

CLASSES = list(errors.BY_CODE.values())


def subclasses(root: type[errors.PulsarError]) -> list[type[errors.PulsarError]]:
    """All classes below one, itself not included."""
    return [found for each in root.__subclasses__() for found in (each, *subclasses(each))]


def test_every_server_error_has_a_class_with_its_code() -> None:
    assert sorted(errors.BY_CODE) == sorted(pb.ServerError.values())
    assert {each.code for each in CLASSES} == set(range(26))
    assert len(errors.PulsarError.__subclasses__()) == 26


@pytest.mark.parametrize("code", pb.ServerError.values())
def test_a_class_is_named_after_its_code(code: int) -> None:
    # Pulsar's broker drops the ending of some names; its metadata error has a name of its own.
    wire_name = pb.ServerError.Name(code)
    name = errors.BY_CODE[code].__name__
    assert name in (wire_name, wire_name.removesuffix("Error")) or name == "MetadataStoreError"


@pytest.mark.parametrize("kind", subclasses(errors.PulsarError))
def test_an_error_without_words_has_a_sentence(kind: type[errors.PulsarError]) -> None:
    sentence = str(kind())
    assert sentence == kind.sentence
    assert sentence.endswith(".")
    assert sentence[0].isupper()
    assert len(sentence.split()) > 3


def test_an_error_says_what_it_was_told_to_say() -> None:
    error = errors.ProducerBusy("The producer p is connected from elsewhere.")
    assert (str(error), error.code) == ("The producer p is connected from elsewhere.", 16)


def test_a_special_error_has_the_code_of_the_general_one() -> None:
    assert errors.SubscriptionBusy().code == pb.ConsumerBusy
    assert errors.SubscriptionBusy not in CLASSES


def test_a_violation_of_the_protocol_has_no_code() -> None:
    assert not issubclass(errors.ProtocolViolation, errors.PulsarError)
    assert not hasattr(errors.ProtocolViolation("a frame of 0 bytes"), "code")


def test_an_error_of_the_metadata_is_told_as_a_sentence_and_where_to_look() -> None:
    """Not as it is: it may name files."""
    log = get_logger("pyxbroker.test")
    refused = refusal_of(MetadataError("/data/metadata.db: I/O error"), log, "a test")
    assert isinstance(refused, errors.MetadataStoreError)
    sentence = re.escape(errors.MetadataStoreError.sentence)
    assert re.fullmatch(rf"{sentence} \(reference \w+\)", str(refused))
    assert refusal_of(ValueError("a defect"), log, "a test") is None


def test_who_waited_too_long_for_others_is_not_told_that_the_store_failed() -> None:
    refused = refusal_of(WaitedTooLong("30 s"), get_logger("pyxbroker.test"), "a test")
    assert isinstance(refused, errors.MetadataStoreError)
    assert str(refused).startswith("Other requests have been changing this for too long; try again")
