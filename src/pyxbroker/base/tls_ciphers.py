"""The setting tlsCiphers: a list in OpenSSL's syntax, or of the standard's names.

OpenSSL ignores an unknown word while others remain. A misspelled cipher would then be missing, or
one to be excluded would stay. So every word must be known.
"""

from __future__ import annotations

import re
import ssl
from typing import NamedTuple

from pyxbroker.base.properties import ConfigError

# Python cannot select among the ciphers of TLS 1.3.
_TLS_1_3_PREFIXES = ("TLS_AES_", "TLS_CHACHA20_")
TLS_1_3_CIPHERS = (
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
    "TLS_AES_128_GCM_SHA256",
)
_KNOWN_TLS_1_3 = (*TLS_1_3_CIPHERS, "TLS_AES_128_CCM_SHA256", "TLS_AES_128_CCM_8_SHA256")

# A word begins at a separator or at an @, and may have a sign as a prefix.
_WORD = re.compile(r"@[^@:;,\s]*|[^@:;,\s]+")
_SIGNS = "!-+"  # excludes for good, excludes, moves to the end
_SPECIAL = re.compile(r"@STRENGTH|@SECLEVEL=[0-5]")
_ONLY_FIRST = ("DEFAULT", "SUITEB128", "SUITEB128ONLY", "SUITEB128C2", "SUITEB192")
# Groups that OpenSSL has or had, and that may be empty in a build: lists may exclude them.
_MAY_BE_EMPTY = frozenset(
    """
    3DES aDH aDSS AECDH aECDH aGOST aGOST01 aGOST12 aKRB5 aPSK ARIA aSRP CAMELLIA CAMELLIA128
    CAMELLIA256 DES DSS EXP EXPORT EXPORT40 EXPORT56 FIPS FZA GOST12 GOST89 GOST89MAC GOST94 IDEA
    kDH kDHd kDHr kECDH kECDHe kECDHr kFZA kGOST kGOST18 kKRB5 kPSK KRB5 kSRP LOW MD5 MEDIUM PSK RC2
    RC4 SEED SRP SSLv2 SSLv3
    """.split()
)
# TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256 is ECDHE-RSA-AES128-SHA256.
_STANDARD = re.compile(r"TLS_(ECDHE_ECDSA|ECDHE_RSA|DHE_RSA|RSA)_WITH_(\w+)")

LIKENESS_MIN = 0.95  # one letter: names with larger differences are different ciphers


class Ciphers(NamedTuple):
    """The selected ciphers: those of TLS 1.3, and a list of older ones in OpenSSL's syntax."""

    of_tls_1_3: tuple[str, ...]
    older: str


def read_ciphers(text: str) -> Ciphers:
    """Parse the setting. Raises ConfigError, also for any unknown word."""
    words = _WORD.findall(text)
    if not words:
        return Ciphers((), "")
    of_tls_1_3: list[str] = []
    older: list[str] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for word in words:
        if word.lstrip(_SIGNS).startswith(_TLS_1_3_PREFIXES):
            _check_tls_1_3(word)
            of_tls_1_3.append(word)
        else:
            older.append(_openssl_word(context, word, is_first=not older))
    found = ":".join(older)
    if found and not _chooses(context, found):
        raise ConfigError(
            f"tlsCiphers selects no cipher: {found!r}. Begin with one to include, like DEFAULT."
        )
    return Ciphers(tuple(of_tls_1_3), found)


def _check_tls_1_3(word: str) -> None:
    name = word.lstrip(_SIGNS)
    if name not in _KNOWN_TLS_1_3:
        raise _unknown(name)
    if name != word:
        raise ConfigError(
            f"tlsCiphers has {word!r}, but the ciphers of TLSv1.3 cannot be selected;"
            " tlsProtocols=TLSv1.2 excludes all of them."
        )


def _openssl_word(context: ssl.SSLContext, word: str, is_first: bool) -> str:
    if word.startswith("@"):
        if not _SPECIAL.fullmatch(word):
            raise _unknown(word)
        return word
    if word in _ONLY_FIRST and not is_first:
        raise ConfigError(f"tlsCiphers has {word} after other words, but it must be the first.")
    sign = word[0] if word[0] in _SIGNS else ""
    written = word.removeprefix(sign).split("+")
    names = [_openssl_name(each) for each in written]
    for each, name in zip(written, names, strict=True):
        if (sign and name in _MAY_BE_EMPTY) or word in _ONLY_FIRST:
            continue
        if name in _ONLY_FIRST or not _chooses(context, name):
            raise _unknown(each)
    if not sign and not _chooses(context, "+".join(names)):
        raise _unknown(word)
    return sign + "+".join(names)


def _chooses(context: ssl.SSLContext, words: str) -> bool:
    """Return True if OpenSSL finds a cipher for the words, even a weak one."""
    try:
        context.set_ciphers(f"{words}:@SECLEVEL=0")
    except ssl.SSLError:
        return False
    return True


def _openssl_name(name: str) -> str:
    found = _STANDARD.fullmatch(name)
    if found is None:
        return name
    exchange, cipher = found[1].replace("_", "-"), found[2]
    for block in ("AES", "ARIA", "CAMELLIA"):
        cipher = re.sub(rf"{block}_(\d+)(_CBC)?", rf"{block}\1", cipher)
    if cipher.startswith("ARIA") and exchange == "ECDHE-RSA":
        exchange = "ECDHE"
    cipher = cipher.replace("CCM_8", "CCM8").replace("_POLY1305_SHA256", "_POLY1305")
    cipher = cipher.replace("_", "-")
    return cipher if exchange == "RSA" else f"{exchange}-{cipher}"


def _unknown(name: str) -> ConfigError:
    from pyxbroker.base.suggestions import did_you_mean

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers("ALL:COMPLEMENTOFALL:@SECLEVEL=0")
    names = [each["name"] for each in context.get_ciphers()]
    meant = did_you_mean(_openssl_name(name), names, LIKENESS_MIN, shown_max=1)
    return ConfigError(
        f"tlsCiphers names a cipher unknown to OpenSSL: {name!r}{'; ' + meant if meant else '.'}"
    )
