"""Continuous batching: which requests are decoded side by side, and one token for each.

Driven by the engine, one call of `step` at a time, in the engine's decoding thread; nothing
else touches its state while a step runs, except `interrupt`. Requests start in the order
they came; a finished one leaves at once and its slot is filled again before the next token.
Requests with the same history are one row of a forward pass (`lanes.py`) and are drawn for one
by one. Given the same calls of `step`, the batches and so the results are the same bit for bit.
"""

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence, Set

import numpy as np
import numpy.typing as npt
import torch

from parity.engines.embedded.decoders.decoder import Decoder, Span
from parity.engines.embedded.lanes import Copies, Lanes, Seating
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
        shares_histories: bool = True,
    ) -> None:
        """`decode_text` is needed only for requests with stop strings.

        Without `shares_histories` every request is decoded in a row of its own, which is for
        comparison: the same answers but for rounding, and never less work.
        """
        self._decoder = decoder
        self.max_concurrent = max_concurrent
        self._prefill_tokens = prefill_tokens
        self._decode_text = decode_text
        self._shares_histories = shares_histories
        self._cache = decoder.new_cache()
        self._rows = Rows(capacity=max_concurrent)
        self._lanes = Lanes(capacity=max_concurrent)
        self._seating: tuple[Seating, SamplingPlan] | None = None  # None: not as it was
        self._resident = ResidentPrompts()
        self._waiting: deque[Request] = deque()
        self._ends = np.zeros(decoder.vocabulary_size, np.bool_)
        self._ends[[token for token in eos_token_ids if token < decoder.vocabulary_size]] = True
        self._is_interrupted = False
        self.is_asleep = False  # the cache is gone, and nothing is decoded until `wake`
        self.version = version
        self.sampled_tokens = 0
        self.prefilled_tokens = 0
        self.decoded_rows = 0
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
        Without `decode`, and asleep, only the aborted ones are seen to. Returns the requests
        that ended.
        """
        self._waiting.extend(new)
        finished = self._abort(aborted) if aborted else []
        if not decode or self.is_asleep:
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

    def sleep(self) -> None:
        """Give the cache's memory back; requests keep what was sampled for them."""
        self.is_asleep = True
        self._cache = self._decoder.new_cache()
        self._resident.clear()

    def wake(self) -> None:
        """Compute keys and values of all live requests anew, with the weights served now.

        Whatever it raises, the requests are as they were, and the scheduler still sleeps.
        """
        live = self._rows.live()
        histories = {row: self._rows.history(row) for row in live.tolist()}
        slots = {history: slot for slot, history in enumerate(dict.fromkeys(histories.values()))}
        lanes = Lanes(capacity=self.max_concurrent)
        lanes.take(len(slots), riders=live[:0])
        for row, history in histories.items():
            lanes.board(row, slots[history], length=len(history))
        if histories:
            longest, planned = max(map(len, slots)), int(self._rows.planned[live].max())
            self._cache.reserve(slots=len(live), length=longest + 1, planned_length=planned)
            self._prefill(slots)
        self._lanes = lanes
        self._seating = None
        self.is_asleep = False

    def clear(self) -> None:
        """Forget all requests."""
        self._waiting.clear()
        self._rows = Rows(capacity=self.max_concurrent)
        self._lanes = Lanes(capacity=self.max_concurrent)
        self._seating = None
        self._resident.clear()

    def free(self) -> None:
        """Forget all requests and give the cache's memory back."""
        self.clear()
        self._cache = self._decoder.new_cache()

    def _abort(self, aborted: Set[str]) -> list[Finished]:
        """End requests by id, waiting or live."""
        dropped = [request for request in self._waiting if request.request_id in aborted]
        self._waiting = deque(r for r in self._waiting if r.request_id not in aborted)
        finished = [Finished(request, Completion((), (), (), "abort")) for request in dropped]
        for row in self._rows.live().tolist():
            if self._rows.required(row).request_id in aborted:
                finished.append(self._end(row, "abort"))
        return finished

    def _admit(self) -> list[Finished]:
        """Start as many waiting requests as may run, equal prompts on one lane; those that end."""
        count = min(len(self._waiting), self.max_concurrent - self._rows.num_live)
        if count == 0:
            return []
        self._seating = None
        requests = [self._waiting.popleft() for _ in range(count)]
        prompts = dict.fromkeys(request.tokens for request in requests)
        taken = self._lanes.take(len(prompts), riders=self._rows.live())
        lanes = dict(zip(prompts, taken.tolist(), strict=True))
        rows = self._rows.take(count)
        for row, request in zip(rows.tolist(), requests, strict=True):
            self._rows.put(row, request, prompt_version=self.version)
            self._lanes.board(row, lanes[request.tokens], length=len(request.tokens))
        longest = max(map(len, prompts))
        planned = max(request.num_total_tokens for request in requests)
        slots = self._rows.num_live  # as many lanes as there may be without another admission
        self._cache.reserve(slots=slots, length=longest + 1, planned_length=planned)
        logits = self._copy_residents(lanes)
        logits |= self._prefill({p: lane for p, lane in lanes.items() if p not in logits})
        for prompt, lane in lanes.items():
            self._resident.put(lane, prompt, logits[prompt])
        places = {prompt: place for place, prompt in enumerate(lanes)}
        of = np.array([places[request.tokens] for request in requests], np.int64)
        after = torch.stack([logits[prompt] for prompt in lanes])
        return self._sample(
            after, rows, self._plan_for(rows), of=of if len(prompts) < count else None
        )

    def _copy_residents(self, lanes: Mapping[Prompt, int]) -> dict[Prompt, torch.Tensor]:
        """Copy prompts that some slot holds to their lanes; the logits after each of them.

        All copies happen at once, because a slot may be the source of one and the target of
        another.
        """
        sources: list[int] = []
        targets: list[int] = []
        logits: dict[Prompt, torch.Tensor] = {}
        for prompt, lane in lanes.items():
            found = self._resident.find(prompt)
            if found is not None:
                sources.append(found[0])
                targets.append(lane)
                logits[prompt] = found[1]
        self._cache.copy(sources, targets, length=max(map(len, logits), default=0))
        for lane in lanes.values():
            self._resident.drop(lane)
        return logits

    def _prefill(self, lanes: Mapping[Prompt, int]) -> dict[Prompt, torch.Tensor]:
        """Run each prompt once, into its lane; the logits after each of them."""
        prompts = list(lanes)
        found: dict[Prompt, torch.Tensor] = {}
        for batch in plan_batches(prompts, limit=self._prefill_tokens):
            chosen = [prompts[index] for index in batch]
            slots = [lanes[prompt] for prompt in chosen]
            logits = prefill(self._decoder, self._cache, chosen, slots, limit=self._prefill_tokens)
            found |= zip(chosen, logits, strict=True)
            self.prefilled_tokens += sum(map(len, chosen))
        return found

    def _decode(self) -> list[Finished]:
        """One token for every live request; those that finished with it."""
        self._split()
        spans = self._arrange()
        rows, lanes = self._rows, self._lanes
        seating, plan = self._seated()
        device = self._decoder.device
        logits = self._decoder.decode(
            self._cache,
            tokens=torch.from_numpy(rows.newest[seating.rows[seating.first]]).to(device),
            lengths=torch.from_numpy(lanes.length[: lanes.size]).to(device),
            spans=spans,
        )
        lanes.length[: lanes.size] += 1
        self.decoded_rows += lanes.size
        return self._sample(logits, seating.rows, plan, of=seating.lanes)

    def _seated(self) -> tuple[Seating, SamplingPlan]:
        """Who rides where, and how they are sampled, found anew where it changed."""
        if self._seating is None:
            seating = self._lanes.seat(self._rows.live())
            self._seating = seating, self._plan_for(seating.rows)
        return self._seating

    def _split(self) -> None:
        """Requests of one lane that drew different tokens go on in lanes of their own."""
        if self._seating is not None and not self._seating[0].is_shared:
            return
        riders = self._rows.live()
        drawn = self._rows.newest[riders] if self._shares_histories else riders
        self._relocate(self._lanes.split(riders, drawn).by_length())

    def _arrange(self) -> list[Span]:
        """Close holes, make room for one more token, and order the lanes into spans."""
        lanes = self._lanes
        if self._seating is None:
            self._relocate(lanes.close(self._rows.live()).by_length())
        lengths = lanes.length[: lanes.size]
        longest = int(lengths.max()) + 1
        if longest > self._cache.length:
            planned = int(self._rows.planned[self._rows.live()].max())
            self._cache.reserve(slots=lanes.size, length=longest, planned_length=planned)
        arrangement = arrange(lengths, room=self._cache.length, may_move=self._decoder.uses_spans)
        if len(arrangement.sources):
            riders = self._rows.live()
            self._relocate([lanes.move(arrangement.sources, arrangement.targets, riders=riders)])
        return arrangement.spans

    def _relocate(self, parts: Iterable[Copies]) -> None:
        """Copy lanes to other slots, part by part and inside a part all at once."""
        for part in parts:
            sources, targets = part.sources.tolist(), part.targets.tolist()
            self._cache.copy(sources, targets, length=int(part.lengths.max()))
            self._resident.move(sources, targets)
            self._seating = None

    def _plan_for(self, rows: Ints) -> SamplingPlan:
        table = self._rows
        return SamplingPlan.of(
            temperature=table.temperature[rows],
            top_p=table.top_p[rows],
            top_k=table.top_k[rows],
            device=self._decoder.device,
        )

    def _sample(
        self, logits: torch.Tensor, rows: Ints, plan: SamplingPlan, *, of: Ints | None
    ) -> list[Finished]:
        """Draw and record one token for each of `rows`.

        `of` [R] is the row of `logits` [lanes, V] for each of them; None: they are in order.
        """
        table = self._rows
        if of is not None:
            logits = logits.index_select(0, torch.from_numpy(of).to(logits.device))
        noise = torch.from_numpy(uniforms(table.seed[rows], table.sampled[rows]))
        drawn, scored = sample(logits, plan, noise.to(logits.device))
        ids, logprobs = drawn.cpu().numpy(), scored.cpu().numpy()
        num_broken = int((~np.isfinite(logprobs)).sum())
        if num_broken:
            raise EngineError(
                f"the logits of {num_broken} of {len(rows)} requests aren't finite under version "
                f"{self.version}; its weights are broken."
            )
        table.record(rows, ids, logprobs, version=self.version)
        self.sampled_tokens += len(rows)
        return self._end_finished(rows, ids)

    def _end_finished(self, rows: Ints, ids: Ints) -> list[Finished]:
        """End the requests whose newest token `ids` is their last."""
        table = self._rows
        is_stop = self._ends[ids] | table.hit_stop_id(rows, ids)
        for index in np.flatnonzero(table.has_stop_text[rows] & ~is_stop):
            is_stop[index] = self._completes_stop(int(rows[index]))
        is_last = is_stop | (table.sampled[rows] >= table.limit[rows])
        return [
            self._end(int(rows[index]), "stop" if is_stop[index] else "length")
            for index in np.flatnonzero(is_last)
        ]

    def _completes_stop(self, row: int) -> bool:
        if self._decode_text is None:
            raise AssertionError("a request with stop strings was let in without decode_text")
        stop = self._rows.required(row).sampling.stop
        return completes_stop(self._rows.answer(row).tolist(), stop, self._decode_text)

    def _end(self, row: int, reason: FinishReason) -> Finished:
        finished = Finished(self._rows.required(row), self._rows.completion(row, reason))
        self._rows.free(row)
        self._seating = None
        return finished
