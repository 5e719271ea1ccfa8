"""Fields of chat completions that another protocol has not. They would change the answer, so they
are refused there and not ignored. Knows names and neutral values."""

import msgspec

from relight.serve.fields import CHAT_REFUSED, Refused
from relight.serve.schema import ChatCall

_NEUTRAL: dict[str, tuple[object, ...]] = {
    "add_generation_prompt": (True,),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "frequency_penalty": (0,),
    "ignore_eos": (False,),
    "include_reasoning": (True,),
    "include_speculation": (False,),
    "include_stop_str_in_output": (False,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "min_p": (0,),
    "min_tokens": (0,),
    "n": (1,),
    "parallel_tool_calls": (True,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "stop": ([], ""),
    "stop_token_ids": ([],),
    "top_k": (-1, 0),
    "top_logprobs": (0,),
}
_HARMLESS = frozenset({"stream_options"})


def chat_only(call: type[msgspec.Struct], **here: str) -> dict[str, Refused]:
    """Those that `call` does not know. `here` says how the protocol names what is meant."""
    names = set(ChatCall.__struct_fields__) - set(call.__struct_fields__) - _HARMLESS
    fields = {
        name: Refused(
            _NEUTRAL.get(name, ()),
            f"send {here[name]}" if name in here else "it is read by chat completions only",
        )
        for name in names
    }
    return CHAT_REFUSED | fields
