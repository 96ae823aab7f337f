"""Send a message as mail by an SMTP server."""

import smtplib
import ssl
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime

from torchloom_core.config.notify import Mail
from torchloom_core.floor.addresses import address
from torchloom_core.floor.plain_text import plain_line
from torchloom_core.live.weaver.notify.channel import SendError, secret, without
from torchloom_core.live.weaver.notify.grouping import Message

_ANSWER_S = 8.0
_REFUSED = 500
"""SMTP replies from this on are final."""


class MailChannel:
    """Sends one mail to all recipients."""

    def __init__(self, settings: Mail) -> None:
        self._settings = settings

    def send(self, message: Message) -> str:
        """Send it."""
        settings = self._settings
        password = secret(settings.password, "password")
        host, port = address(settings.server, "server")
        try:
            with _connect(settings, host, port) as server:
                if settings.tls == "starttls":
                    server.starttls(context=ssl.create_default_context())
                if settings.user:
                    server.login(settings.user, password)
                refused = server.send_message(_mail(settings, message))
        except smtplib.SMTPNotSupportedError as error:
            raise SendError(without(str(error), (password,))) from None
        except smtplib.SMTPRecipientsRefused as error:
            raise SendError(f"refused: {', '.join(error.recipients)}") from None
        except smtplib.SMTPResponseException as error:
            text = without(f"SMTP {error.smtp_code} {error.smtp_error!r}", (password,))
            raise (SendError if error.smtp_code >= _REFUSED else OSError)(text) from None
        except OSError as error:
            raise OSError(without(str(error) or type(error).__name__, (password,))) from None
        return f"sent to {len(settings.to) - len(refused)} of {len(settings.to)}"


def _connect(settings: Mail, host: str, port: int) -> smtplib.SMTP:
    if settings.tls == "tls":
        context = ssl.create_default_context()
        return smtplib.SMTP_SSL(host, port, timeout=_ANSWER_S, context=context)
    return smtplib.SMTP(host, port, timeout=_ANSWER_S)


def _mail(settings: Mail, message: Message) -> EmailMessage:
    mail = EmailMessage()
    mail["From"] = settings.sender
    mail["To"] = ", ".join(settings.to)
    mail["Subject"] = plain_line(message.title)
    mail["Date"] = format_datetime(datetime.fromtimestamp(message.since_s, UTC))
    mail["Message-ID"] = f"<{message.run}.{message.id}@torchloom.invalid>"
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(message.text)
    return mail
