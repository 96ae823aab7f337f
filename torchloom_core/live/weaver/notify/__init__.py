"""Messages to people: webhook, Slack, mail."""
