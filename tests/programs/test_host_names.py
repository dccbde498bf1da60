"""What a host's name stands for."""

import pytest

from each_case import each_case
from ibwire.base.errors import LinkError
from ibwire.programs.host_names import addresses_of


@pytest.mark.parametrize(
    ("host", "address"),
    [("10.0.0.2", "10.0.0.2"), ("fd00::a00:2", "fd00::a00:2"), ("fe80::1%lo", "fe80::1")],
)
def test_address_stands_for_itself_without_its_interface(host: str, address: str) -> None:
    assert addresses_of(host) == [address]


@each_case("host", ["nowhere.invalid", "", "a" * 300, "10.0.0.300", "\ud800"])
def test_what_is_no_name_is_a_sentence(host: str) -> None:
    with pytest.raises(LinkError, match="no such host"):
        addresses_of(host)
