"""The part of torchft's Manager that the adapter needs to attach, without any function."""


class BareProcessGroup:
    def get_reconfigure_handle(self):
        return "{}"

    def reconfigure(self, opts):
        raise AssertionError("there is no quorum")


class BareManager:
    _use_async_quorum = False
    _group_world_size = 1

    def __init__(self):
        self._pg = BareProcessGroup()
        self._client = None
        self._load_state_dict_fns = {}

    def _apply_pending_state_dict(self):
        raise AssertionError("no group heals")

    def register_state_dict_fn(self, key, load, save):
        self._load_state_dict_fns[key] = load

    def start_quorum(self):
        raise AssertionError("no group trains")

    wait_quorum = should_commit = start_quorum
