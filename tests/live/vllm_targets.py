"""Requests whose targets are written in unusual ways, to a real vLLM with either of its front ends."""

from targets import CHAT, TARGETS, compare
from vllm_process import engine

MAX_SECONDS = 1200  # Each start of vLLM takes minutes.


def vllm_requests_are_counted_once_with_their_tokens():
    for front_end in ("python", "rust"):
        with engine(front_end) as server:
            assert CHAT in compare(server, TARGETS)
