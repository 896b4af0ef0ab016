"""Running jobs: claim, dispatch, beat, settle, drain; see `postroom.worker.loop`."""
