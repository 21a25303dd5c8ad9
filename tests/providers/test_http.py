"""What of a provider's configuration must not come back in an error."""

from crush_trio.providers.base import Endpoint
from crush_trio.providers.failures import secrets_of, without


def endpoint(**given):
    return Endpoint(provider="p", type="openai", **given)


def test_the_value_of_every_configured_header_is_a_secret_whatever_its_name():
    secrets = secrets_of(
        endpoint(
            extra_headers={"X-Gateway": "open sesame-42", "Authorization": "Bearer abcd-1234"},
        )
    )
    said = "refused: open sesame-42, sesame-42, Bearer abcd-1234, abcd-1234"
    assert not {"open", "sesame-42", "abcd-1234"} & set(without(said, secrets).split(", "))


def test_values_that_are_too_short_are_not_looked_for():
    assert secrets_of(endpoint(extra_headers={"X-Version": "2", "X-Mode": "on"})) == ()


def test_texts_of_the_body_are_secrets_under_the_names_of_secrets():
    body = {
        "user_token": "deep-down",
        "auth": [{"client_secret": ["listed-one", 3]}],
        "style": "plain-words",
    }
    assert sorted(set(secrets_of(endpoint(extra_body=body)))) == ["deep-down", "listed-one"]


def test_a_key_and_a_password_in_the_address_are_secrets_however_short():
    secrets = secrets_of(endpoint(api_key="k1", base_url="https://me:pw@models.invalid/v1"))
    assert sorted(secrets) == ["k1", "pw"]
