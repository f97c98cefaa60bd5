"""Hold what a decoder-only language model is made of, and count its weights and its cache in closed form.

A decoder makes one token after another. The *prefill* reads the whole prompt at once; each *decoding step* reads one
token of every sequence, and the keys and values of all tokens before, which are kept in the *KV cache*.
"""

from __future__ import annotations

from collections.abc import Iterator

from gkestimator.core.errors import UsageError
from gkestimator.core.records import frozen

# Far above what anyone serves, and far below what overflows.
MOST_TOKENS = 100_000_000
MOST_BATCH = 1_000_000
NORMS = ("rms", "layer")
POSITIONS = ("rotary", "learned", "alibi")


@frozen
class Experts:
    """Hold a mixture of experts: ``count`` experts of inner width ``inner``, of which each token takes ``chosen``;
    ``shared`` is the inner width of the expert that every token takes besides (0: none).
    """

    count: int
    chosen: int
    inner: int
    shared: int = 0


@frozen
class Decoder:
    """Hold one decoder: sizes in elements, counts as they are.

    ``width`` is the size of a token's vector, ``inner`` that of the feed-forward layer, ``heads`` the query heads and
    ``kv_heads`` those of keys and values (fewer: grouped heads). ``gated`` feed-forward layers have two products
    before the activation. ``tied``: the output layer's weight is the embedding's. ``norm`` is one of
    :data:`NORMS`, ``positions`` one of :data:`POSITIONS`; ``position_rows`` are the rows of a learned table.
    ``parallel``: attention and feed-forward layer read the same input and are added together; ``norms`` counts the
    normalisations of a layer. ``qk_norm`` is the size that queries and keys are normalised over (0: they are not).
    ``rotary_share`` is the part of each head that rotary positions turn.
    ``packed``: one product for queries, keys and values. ``embedding_norm``: a normalisation behind the embedding.
    ``experts`` take the place of the feed-forward layer in all but the first ``dense_layers`` layers.
    ``window`` is how many of the last tokens the layers of ``window_layers`` see (0 and 0: all see all).
    ``most_tokens`` is the longest context that the model was made for; None where its file does not say.
    """

    name: str
    kind: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_size: int
    inner: int
    vocabulary: int
    gated: bool
    activation: str
    norm: str
    positions: str
    tied: bool
    norms: int = 2
    parallel: bool = False
    packed: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    inner_bias: bool = False
    output_bias: bool = False
    norm_bias: bool = False
    qk_norm: int = 0
    rotary_share: float = 1.0
    position_rows: int = 0
    embedding_norm: bool = False
    experts: Experts | None = None
    dense_layers: int = 0
    window: int = 0
    window_layers: int = 0
    most_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise UsageError(
                f"{self.name}: {self.heads} query heads are no multiple of {self.kv_heads} key heads"
            )
        if self.window_layers > self.layers:
            raise UsageError(f"{self.name}: {self.window_layers} layers have a window, of {self.layers}")

    @property
    def query_width(self) -> int:
        """Return the elements of all query heads of a token."""
        return self.heads * self.head_size

    @property
    def cache_width(self) -> int:
        """Return the elements of all keys (or all values) of a token in one layer."""
        return self.kv_heads * self.head_size

    @property
    def norm_parameters(self) -> int:
        """Return the parameters of one normalisation over a token's vector."""
        return self.width * (2 if self.norm_bias else 1)

    def attention_parameters(self) -> int:
        """Return the parameters of one layer's attention: queries, keys, values, output, and their norms."""
        projected = self.query_width + 2 * self.cache_width
        weights = self.width * projected + self.query_width * self.width
        biases = projected * self.qkv_bias + self.width * self.out_bias
        return weights + biases + self._qk_norm_parameters()

    def _qk_norm_parameters(self) -> int:
        if not self.qk_norm:
            return 0
        if self.qk_norm == self.head_size:
            return 2 * self.qk_norm
        return self.query_width + self.cache_width

    def feed_forward_parameters(self, inner: int) -> int:
        """Return the parameters of one feed-forward layer of width ``inner``."""
        first = (2 if self.gated else 1) * inner
        biases = (first + self.width) * self.inner_bias
        return self.width * first + inner * self.width + biases

    def layer_parameters(self, *, dense: bool) -> int:
        """Return the parameters of one layer, with the feed-forward layer where ``dense``, else with all experts."""
        mixed = self.experts
        shared = self.attention_parameters() + self.norms * self.norm_parameters
        if dense or mixed is None:
            return shared + self.feed_forward_parameters(self.inner)
        router = self.width * mixed.count
        # An expert that every token takes has a gate of its own, one number for each token.
        common = self.feed_forward_parameters(mixed.shared) + self.width if mixed.shared else 0
        return shared + router + common + mixed.count * self.feed_forward_parameters(mixed.inner)

    @property
    def expert_layers(self) -> int:
        """Return how many layers have experts."""
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def parameters(self) -> int:
        """Return the number of parameters; a tied output layer adds none."""
        embedding = self.vocabulary * self.width
        total = embedding + self.position_rows * self.width
        total += self.norm_parameters * (1 + self.embedding_norm)
        total += 0 if self.tied else embedding
        total += self.vocabulary * self.output_bias
        sparse = self.expert_layers
        total += (self.layers - sparse) * self.layer_parameters(dense=True)
        return total + sparse * self.layer_parameters(dense=False)

    def cache_bytes_per_token(self, element_bytes: float) -> float:
        """Return the bytes of keys and values that one token of one sequence adds, all layers together."""
        return 2 * self.layers * self.cache_width * element_bytes

    def cache_bytes(self, tokens: int, element_bytes: float) -> float:
        """Return the bytes of the cache of one sequence of ``tokens``; layers with a window keep the window alone."""
        held = sum(count * min(tokens, window or tokens) for window, count in self.spans())
        return 2 * held * self.cache_width * element_bytes

    def spans(self) -> Iterator[tuple[int, int]]:
        """Yield each span of attention (in tokens, 0: all of them) with the number of layers that have it."""
        if self.layers > self.window_layers:
            yield 0, self.layers - self.window_layers
        if self.window_layers:
            yield self.window, self.window_layers
