"""Continuous batching: which requests are decoded side by side, and one token for each.

Driven by the engine, one call of `step` at a time, in the engine's decoding thread; nothing
else touches its state while a step runs, except `interrupt`. Requests start in the order
they came; a finished one leaves at once and its slot is filled again before the next token.
Given the same calls of `step`, the batches and so the results are the same bit for bit.
"""

import time
from collections import deque
from collections.abc import Mapping, Sequence, Set

import numpy as np
import numpy.typing as npt
import torch

from parity.engines.embedded.decoders.decoder import Decoder, Span
from parity.engines.embedded.prompts import Prompt, ResidentPrompts, plan_batches, prefill
from parity.engines.embedded.request import Finished, Request
from parity.engines.embedded.rows import Rows
from parity.engines.embedded.sampler import SamplingPlan, sample, uniforms
from parity.engines.embedded.spans import arrange
from parity.engines.embedded.stops import DecodeText, completes_stop
from parity.errors import EngineError
from parity.types import Completion, FinishReason

_TOKENS_PER_STEP = 8  # decoded in one call while nobody waits for the end of the step

Ints = npt.NDArray[np.int64]


class Scheduler:
    """The requests of one engine, waiting and being decoded."""

    def __init__(
        self,
        decoder: Decoder,
        *,
        max_concurrent: int,
        prefill_tokens: int,
        eos_token_ids: Set[int],
        decode_text: DecodeText | None,
        version: int,
    ) -> None:
        """`decode_text` is needed only for requests with stop strings."""
        self._decoder = decoder
        self.max_concurrent = max_concurrent
        self._prefill_tokens = prefill_tokens
        self._decode_text = decode_text
        self._cache = decoder.new_cache()
        self._rows = Rows(capacity=max_concurrent)
        self._resident = ResidentPrompts()
        self._waiting: deque[Request] = deque()
        self._plan: SamplingPlan | None = None  # of the rows as they are; None: rows changed
        self._ends = np.zeros(decoder.vocabulary_size, np.bool_)
        self._ends[[token for token in eos_token_ids if token < decoder.vocabulary_size]] = True
        self._is_interrupted = False
        self.version = version
        self.sampled_tokens = 0
        self.prefilled_tokens = 0
        self.busy_s = 0.0

    @property
    def num_running(self) -> int:
        """Requests that are being decoded."""
        return self._rows.num_live

    @property
    def has_work(self) -> bool:
        """Whether a step would decode something."""
        return self._rows.num_live > 0 or bool(self._waiting)

    @property
    def cache_size_bytes(self) -> int:
        """Memory that keys and values take now."""
        return self._cache.size_bytes

    def interrupt(self, *, is_wanted: bool = True) -> None:
        """End a step after the token it is at, until this is taken back.

        Called by the event loop's thread alone, which takes it back before it starts a step:
        so no interruption between start and end of a step is lost.
        """
        self._is_interrupted = is_wanted

    def step(
        self, new: Sequence[Request], aborted: Set[str], *, decode: bool = True
    ) -> list[Finished]:
        """Take in new requests, end aborted ones, and decode at least one token for the rest.

        Decodes several tokens in a row until a request finishes or `interrupt` is called.
        Without `decode` only the aborted ones are seen to. Returns the requests that ended.
        """
        self._waiting.extend(new)
        finished = self._abort(aborted) if aborted else []
        if not decode:
            return finished
        started = time.perf_counter()
        finished += self._admit()
        for _ in range(_TOKENS_PER_STEP):
            if finished or self._rows.num_live == 0:
                break
            finished += self._decode()
            if self._is_interrupted:
                break
        self.busy_s += time.perf_counter() - started
        return finished

    def serve(self, version: int) -> None:
        """Decode with the decoder's staged weights from the next token on."""
        self._decoder.swap()
        self._resident.clear()
        self.version = version

    def clear(self) -> None:
        """Forget all requests."""
        self._waiting.clear()
        self._rows = Rows(capacity=self.max_concurrent)
        self._resident.clear()
        self._plan = None

    def free(self) -> None:
        """Forget all requests and give the cache's memory back."""
        self.clear()
        self._cache = self._decoder.new_cache()

    def _abort(self, aborted: Set[str]) -> list[Finished]:
        """End requests by id, waiting or live."""
        dropped = [request for request in self._waiting if request.request_id in aborted]
        self._waiting = deque(r for r in self._waiting if r.request_id not in aborted)
        finished = [Finished(request, Completion((), (), (), "abort")) for request in dropped]
        for slot in range(self._rows.size):
            request = self._rows.requests[slot]
            if request is not None and request.request_id in aborted:
                finished.append(self._end(slot, "abort"))
        return finished

    def _admit(self) -> list[Finished]:
        """Start as many waiting requests as there are slots; those that end at once."""
        count = min(len(self._waiting), self.max_concurrent - self._rows.num_live)
        if count == 0:
            return []
        self._plan = None
        requests = [self._waiting.popleft() for _ in range(count)]
        slots = self._rows.take_slots(count)
        longest = max(len(request.tokens) for request in requests)
        planned = max(request.num_total_tokens for request in requests)
        self._cache.reserve(slots=self._rows.size, length=longest + 1, planned_length=planned)
        by_prompt: dict[Prompt, list[int]] = {}
        for slot, request in zip(slots, requests, strict=True):
            self._rows.put(slot, request, prompt_version=self.version)
            by_prompt.setdefault(request.tokens, []).append(slot)
        logits = self._copy_residents(by_prompt)
        logits |= self._prefill(
            {prompt: slots for prompt, slots in by_prompt.items() if prompt not in logits}
        )
        for prompt, siblings in by_prompt.items():
            for slot in siblings:
                self._resident.put(slot, prompt, logits[prompt])
        started = np.array(slots, np.int64)
        after = torch.stack([logits[request.tokens] for request in requests])
        return self._sample(after, started, self._plan_for(started))

    def _copy_residents(self, by_prompt: Mapping[Prompt, list[int]]) -> dict[Prompt, torch.Tensor]:
        """Copy prompts that some slot holds; the logits after each of them.

        All copies happen at once, because a slot may be the source of one and the target of
        another.
        """
        sources: list[int] = []
        targets: list[int] = []
        logits: dict[Prompt, torch.Tensor] = {}
        for prompt, slots in by_prompt.items():
            found = self._resident.find(prompt)
            if found is not None:
                sources += [found[0]] * len(slots)
                targets += slots
                logits[prompt] = found[1]
        self._cache.copy(sources, targets, length=max(map(len, logits), default=0))
        for slots in by_prompt.values():
            for slot in slots:
                self._resident.drop(slot)
        return logits

    def _prefill(self, by_prompt: Mapping[Prompt, list[int]]) -> dict[Prompt, torch.Tensor]:
        """Run each prompt once and copy it to its siblings; the logits after each of them."""
        prompts = list(by_prompt)
        found: dict[Prompt, torch.Tensor] = {}
        for batch in plan_batches(prompts, limit=self._prefill_tokens):
            chosen = [prompts[index] for index in batch]
            firsts = [by_prompt[prompt][0] for prompt in chosen]
            logits = prefill(self._decoder, self._cache, chosen, firsts, limit=self._prefill_tokens)
            found |= zip(chosen, logits, strict=True)
            self.prefilled_tokens += sum(len(prompt) for prompt in chosen)
            sources = [by_prompt[prompt][0] for prompt in chosen for _ in by_prompt[prompt][1:]]
            targets = [slot for prompt in chosen for slot in by_prompt[prompt][1:]]
            self._cache.copy(sources, targets, length=max(map(len, chosen)))
        return found

    def _decode(self) -> list[Finished]:
        """One token for every live request; those that finished with it."""
        spans = self._arrange()
        rows, size = self._rows, self._rows.size
        slots = np.arange(size)
        if self._plan is None:
            self._plan = self._plan_for(slots)
        device = self._decoder.device
        logits = self._decoder.decode(
            self._cache,
            tokens=torch.from_numpy(rows.next_token[:size]).to(device),
            lengths=torch.from_numpy(rows.length[:size]).to(device),
            spans=spans,
        )
        rows.length[:size] += 1
        return self._sample(logits, slots, self._plan)

    def _arrange(self) -> list[Span]:
        """Close holes, make room for one more token, and order the slots into spans."""
        rows = self._rows
        if rows.holes:
            self._plan = None
            self._move(*rows.plan_closing())
            rows.drop_holes()
        lengths = rows.length[: rows.size]
        longest = int(lengths.max()) + 1
        if longest > self._cache.length:
            planned = int(rows.planned[: rows.size].max())
            self._cache.reserve(slots=rows.size, length=longest, planned_length=planned)
        arrangement = arrange(lengths, room=self._cache.length, may_move=self._decoder.uses_spans)
        self._move(arrangement.sources, arrangement.targets)
        return arrangement.spans

    def _move(self, sources: list[int], targets: list[int]) -> None:
        """Move live requests to other slots, all at once."""
        if sources:
            self._plan = None
            longest = int(self._rows.length[sources].max())
            self._cache.copy(sources, targets, length=longest)
            self._rows.move(sources, targets)
            self._resident.move(sources, targets)

    def _plan_for(self, slots: Ints) -> SamplingPlan:
        rows = self._rows
        return SamplingPlan.of(
            temperature=rows.temperature[slots],
            top_p=rows.top_p[slots],
            top_k=rows.top_k[slots],
            device=self._decoder.device,
        )

    def _sample(self, logits: torch.Tensor, slots: Ints, plan: SamplingPlan) -> list[Finished]:
        """Draw and record one token for each of `slots` (logits [rows, V])."""
        rows = self._rows
        noise = torch.from_numpy(uniforms(rows.seed[slots], rows.sampled[slots]))
        drawn, scored = sample(logits, plan, noise.to(logits.device))
        ids, logprobs = drawn.cpu().numpy(), scored.cpu().numpy()
        num_broken = int((~np.isfinite(logprobs)).sum())
        if num_broken:
            raise EngineError(
                f"the logits of {num_broken} of {len(slots)} requests aren't finite under version "
                f"{self.version}; its weights are broken."
            )
        rows.record(slots, ids, logprobs, version=self.version)
        self.sampled_tokens += len(slots)
        return self._end_finished(slots, ids)

    def _end_finished(self, slots: Ints, ids: Ints) -> list[Finished]:
        """End the requests whose newest token `ids` is their last."""
        rows = self._rows
        is_stop = self._ends[ids] | rows.hit_stop_id(slots, ids)
        for index in np.flatnonzero(rows.has_stop_text[slots] & ~is_stop):
            is_stop[index] = self._completes_stop(int(slots[index]))
        is_last = is_stop | (rows.sampled[slots] >= rows.limit[slots])
        return [
            self._end(int(slots[index]), "stop" if is_stop[index] else "length")
            for index in np.flatnonzero(is_last)
        ]

    def _completes_stop(self, slot: int) -> bool:
        if self._decode_text is None:
            raise AssertionError("a request with stop strings was let in without decode_text")
        stop = self._rows.required(slot).sampling.stop
        return completes_stop(self._rows.answer(slot).tolist(), stop, self._decode_text)

    def _end(self, slot: int, reason: FinishReason) -> Finished:
        finished = Finished(self._rows.required(slot), self._rows.completion(slot, reason))
        self._rows.free(slot)
        return finished
