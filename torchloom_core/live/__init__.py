"""What runs beside a live run: Weaver, kernel, fleet, transport, lighthouse, dashboard, record."""
