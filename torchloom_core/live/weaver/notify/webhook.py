"""Post a message as JSON to a URL."""

import msgspec

from torchloom_core.config.notify import Webhook
from torchloom_core.live.weaver.notify.channel import secret
from torchloom_core.live.weaver.notify.grouping import Message
from torchloom_core.live.weaver.notify.post import post


class WebhookChannel:
    """Posts the message's fields, with its id as the idempotency key."""

    def __init__(self, settings: Webhook) -> None:
        self._settings = settings

    def send(self, message: Message) -> str:
        """Post it."""
        url, token = secret(self._settings.url, "url"), secret(self._settings.token, "token")
        headers = {"Idempotency-Key": f"{message.run}-{message.id}"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        body = {**msgspec.to_builtins(message), "title": message.title, "text": message.text}
        return post(url, body, headers, (url, token))
