"""Post a message to an incoming webhook of Slack, or of a program that takes the same JSON."""

from torchloom_core.config.notify import Slack
from torchloom_core.live.weaver.notify.channel import secret
from torchloom_core.live.weaver.notify.grouping import Message
from torchloom_core.live.weaver.notify.post import post

_MOST_CHARACTERS = 2900
"""A section of a Slack message has at most 3000."""


class SlackChannel:
    """Posts a title in bold and the lines below it."""

    def __init__(self, settings: Slack) -> None:
        self._settings = settings

    def send(self, message: Message) -> str:
        """Post it."""
        url = secret(self._settings.url, "url")
        title, text = _escaped(message.title), _escaped(message.text)[:_MOST_CHARACTERS]
        section = {"type": "section", "text": {"type": "mrkdwn", "text": f"*{title}*\n{text}"}}
        return post(url, {"text": title, "blocks": [section]}, {}, (url,))


def _escaped(text: str) -> str:
    """Return a text without Slack's control characters: a name in it can mention nobody."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
