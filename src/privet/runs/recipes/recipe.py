"""A recipe: one run as plain values. Its plan needs neither data nor torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tomli_w
from pydantic import ValidationError

from privet.datasets.info import DatasetInfo
from privet.datasets.known import KNOWN_DATASETS, describe
from privet.errors import PrivetError, RecipeError
from privet.mechanism import codec
from privet.mechanism.ablations import NoNoise
from privet.mechanism.sampling import Sampling
from privet.models.model_sizes import MODEL_SIZES
from privet.plan import Plan
from privet.runs.recipes.data_sheet import DataSheet
from privet.runs.recipes.declared_size import with_fields
from privet.runs.recipes.evaluation_settings import EvaluationSettings
from privet.runs.recipes.file_settings import FileSettings
from privet.runs.recipes.image_settings import ImageSettings
from privet.runs.recipes.network_settings import OWN_NETWORK, NetworkSettings
from privet.runs.recipes.pretraining_settings import PretrainingSettings
from privet.runs.recipes.recipe_faults import explained, refuse_unknown_keys
from privet.runs.recipes.table_settings import ReleasedSettings, TableSettings
from privet.runs.recipes.text_settings import OWN_ENCODER, EncoderSettings, TextSettings
from privet.runs.recipes.training_settings import Positive, SgdSettings, Table, TrainingSettings
from privet.vocabulary import Release, Unit

# Each declares files for training and test with a public size, and gives the public facts about them.
OwnData = TableSettings | ImageSettings | TextSettings

# Names of own data begin with this where they follow from the name of a file.
OWN_PREFIX = "own_"

# These change neither the trained model nor its guarantee, so a run may be resumed with other values.
FREE_ON_RESUME = (
    "training.physical_batch_size",
    "training.workers",
    "training.device",
    "training.checkpoint_every",
    "training.evaluate_every",
    "name",
    "description",
    "evaluation.epsilon",
    "evaluation.groups",
    "evaluation.loss_clip",
    "evaluation.importance",
    *(f"data_sheet.{name}" for name in DataSheet.model_fields),
)


class PrivacySettings(Table):
    """The terms of the guarantee and the pieces of a step; the plan itself reads the pieces.

    Attributes:
        epsilon: Target epsilon, to which the noise is calibrated; without it the noise has a ``noise_multiplier``.
        sampling: A sampling piece, by its fields or by a declared size: see :mod:`privet.runs.recipes.declared_size`.
        descent: Proven constants of the loss and the step size, for ``release = "last_iterate"``.
    """

    epsilon: Positive | None = None
    delta: float
    adjacency: str
    unit: str
    release: str | None = None
    sampling: dict[str, Any]
    clipping: dict[str, Any]
    noise: dict[str, Any]
    grouping: dict[str, Any] | None = None
    mask: dict[str, Any] | None = None
    descent: dict[str, Any] | None = None

    def plan(self) -> Plan:
        """Return the plan, calibrated if there is a target."""
        multiplier = self.noise.get("noise_multiplier")
        if self.epsilon is not None and multiplier is not None:
            raise RecipeError(
                f"privacy.epsilon is {self.epsilon:g} and privacy.noise.noise_multiplier is {multiplier!r}: each "
                "determines the other. Remove one."
            )
        is_noiseless = codec.NOISE.get(str(self.noise.get("kind"))) is NoNoise
        if self.epsilon is None and multiplier is None and not is_noiseless:
            raise RecipeError("privacy has neither an epsilon nor a noise.noise_multiplier. Give one of them.")
        pieces = self.model_dump(exclude_none=True, exclude={"epsilon"})
        try:
            pieces["sampling"] = with_fields(self.sampling)
            plan = Plan.from_dict(pieces, where="privacy")
            _refuse_truncation_of_most_batches(plan.sampling)
            return plan if self.epsilon is None else plan.calibrated(epsilon=self.epsilon)
        except RecipeError:
            raise
        except PrivetError as error:
            raise RecipeError(f"privacy: {error}") from error

    def without_protection(self) -> PrivacySettings:
        """Return the same sampling without clipping, noise and mask. NOT PRIVATE."""
        pieces: dict[str, Any] = {"clipping": {"kind": "unclipped"}, "noise": {"kind": "none"}}
        absent = dict.fromkeys(("epsilon", "release", "grouping", "mask", "descent"))
        return self.model_copy(update=pieces | absent)


class Recipe(Table):
    """One run: data, network, privacy, training."""

    name: str | None = None
    description: str | None = None
    dataset: str
    model: str
    data_is_public: bool | None = None
    normalisation: str | None = None
    table: TableSettings | None = None
    images: ImageSettings | None = None
    texts: TextSettings | None = None
    network: NetworkSettings | None = None
    encoder: EncoderSettings | None = None
    pretraining: PretrainingSettings | None = None
    evaluation: EvaluationSettings | None = None
    data_sheet: DataSheet | None = None
    privacy: PrivacySettings
    training: TrainingSettings

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], *, in_federation: bool = False) -> Recipe:
        """Check plain values, such as those of a TOML file, and return the recipe they describe.

        Args:
            data: The values.
            in_federation: Whether several parties run it together, so that a party may be the unit.

        Raises:
            RecipeError: naming the dotted path of the value that is unknown, missing or impossible.
        """
        refuse_unknown_keys(data, cls)
        try:
            recipe = cls.model_validate(dict(data))
        except ValidationError as error:
            raise RecipeError(explained(error, data, cls)) from None
        recipe._check_names()
        recipe._check_unit((Unit.CLIENT,) if in_federation else ())
        if in_federation and recipe.released is not None:
            raise RecipeError(
                "The schema was released from the private records of one table (table.released), and a federation does "
                "not count what that cost. Declare the columns without it."
            )
        return recipe

    def _check_names(self) -> None:
        if self.own_data is not None:
            self._check_own_data(self.own_data)
        elif self.dataset not in KNOWN_DATASETS:
            raise RecipeError(
                f"dataset is {self.dataset!r}. {codec.suggestion(self.dataset, list(KNOWN_DATASETS))} A name of your "
                "own needs a [table] that declares the files and their columns, [images] that declares a folder, or "
                "[texts] that declares two columns."
            )
        self._check_encoder()
        if self.network is not None:
            self._check_network(self.network)
        elif self.encoder is not None:
            self._check_own_weights(self.encoder, "encoder", OWN_ENCODER)
        elif self.model not in MODEL_SIZES:
            raise RecipeError(f"model is {self.model!r}. {codec.suggestion(self.model, list(MODEL_SIZES))}")
        known = [normalisation.name for normalisation in self.info.normalisations]
        if self.normalisation is not None and self.normalisation not in known:
            raise RecipeError(f"normalisation is {self.normalisation!r}. {codec.suggestion(self.normalisation, known)}")
        if self.training.augmentation is not None and len(self.info.input_shape) != 3:
            raise RecipeError(
                f"training.augmentation shifts and mirrors images; the records of '{self.dataset}' are not images. "
                "Remove it."
            )
        if self.training.evaluate_every is not None and not self.is_public:
            raise RecipeError(
                "training.evaluate_every measures on test data during the run, which the guarantee does not cover. It "
                "is for public data: remove it, or set data_is_public = true if the data are."
            )
        if self.pretraining is not None:
            self.pretraining.check(self.info)
        if self.privacy.release == Release.LAST_ITERATE.value:
            self._check_last_iterate()

    def _check_unit(self, allowed: tuple[Unit, ...]) -> None:
        """Refuse a unit that the records are not declared to be; reading the records checks the declaration."""
        known = (Unit.RECORD,) if self.own_data is None else self.own_data.units
        unit = next((unit for unit in Unit if unit.value == self.privacy.unit), None)
        if unit is None or unit in (*known, *allowed):
            return  # the plan refuses unknown units
        raise RecipeError(
            f"privacy.unit is '{unit.value}', and nothing says that a record of '{self.dataset}' is one {unit.value}. "
            "A person may have several records, and the noise hides one. For data of your own name the column of "
            "persons (person = 'COLUMN' in [table] or [texts]) and bound the records of each (privacy.sampling.kind = "
            "'sampled_persons'), or declare that each record holds everything about one person (one_record_per_person "
            "= true in [table], [texts] or [images]; the guarantee then says so). Otherwise set privacy.unit = "
            "'record'."
        )

    @property
    def own_data(self) -> OwnData | None:
        """The declaration of the user's own data; None for data that privet knows by name."""
        return next(iter(self._declared.values()), None)

    @property
    def file(self) -> FileSettings | None:
        """The declaration of a user's own files with columns; None for images, and for data that privet knows."""
        return self.texts if self.table is None else self.table

    @property
    def _declared(self) -> dict[str, OwnData]:
        found = {"table": self.table, "images": self.images, "texts": self.texts}
        return {name: own for name, own in found.items() if own is not None}

    def _check_own_data(self, own: OwnData) -> None:
        part, *others = self._declared
        if others:
            raise RecipeError(f"The recipe has both [{part}] and [{others[0]}]. It trains on one of them: remove one.")
        if self.dataset in KNOWN_DATASETS:
            raise RecipeError(
                f"dataset is {self.dataset!r}, which privet knows, and the recipe has [{part}]. Give your own data "
                f"another name, or remove [{part}]."
            )
        declared = self.privacy.sampling.get("dataset_size")
        if declared is not None and declared != own.train_size:
            raise RecipeError(
                f"{part}.train_size is {own.train_size} and privacy.sampling.dataset_size is {declared!r}. They are "
                "the same declared number: make them equal."
            )
        if self.evaluation is not None and own.test is None:
            raise RecipeError(
                f"The recipe asks for a private evaluation and names no records for it. Add {part}.test (--test FILE), "
                "or remove evaluation (--evaluate-epsilon)."
            )
        if self.training.evaluate_every is not None and own.test is None:
            raise RecipeError(f"training.evaluate_every needs test data. Add {part}.test, or remove it.")
        own.declared()
        self._check_released()

    def _check_released(self) -> None:
        """Refuse to train for other terms than those that the release of the schema is stated for."""
        released = self.released
        if released is None:
            return
        for name, asked, found in (
            ("unit", self.privacy.unit, released.protects),
            ("adjacency", self.privacy.adjacency, released.neighbours),
        ):
            if asked != found:
                raise RecipeError(
                    f"The schema was released from the private records with {name} {found!r}, and the training asks "
                    f"for {asked!r}: the two have no common guarantee. Train with privacy.{name} = {found!r}"
                    + (", as --person COLUMN --persons NUMBER do" if found == Unit.PERSON.value else "")
                    + ", or release another schema for that."
                )

    @property
    def released(self) -> ReleasedSettings | None:
        """What the schema of a table cost, if it was released from the private records."""
        return None if self.table is None else self.table.released

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What a guarantee of a run of this recipe rests on besides its plan."""
        of_schema = () if self.released is None else (self.released.assumption,)
        return of_schema if self.own_weights is None else (*of_schema, *self.own_weights.assumptions)

    @property
    def own_weights(self) -> NetworkSettings | EncoderSettings | None:
        """The network or the encoder of the user's own; None for a network that privet knows by name."""
        return self.encoder if self.network is None else self.network

    def _check_encoder(self) -> None:
        if self.network is not None and self.encoder is not None:
            raise RecipeError("The recipe has [network] and [encoder]. It trains one of them: remove one.")
        if (self.texts is None) != (self.encoder is None):
            raise RecipeError(
                "[texts] and [encoder] go together: texts are read by the tokenizer of an encoder, which reads nothing "
                "else. Give both, or neither."
            )

    def _check_network(self, network: NetworkSettings) -> None:
        self._check_own_weights(network, "network", OWN_NETWORK)
        network.check()

    def _check_own_weights(self, own: NetworkSettings | EncoderSettings, part: str, name: str) -> None:
        if self.model != name:
            raise RecipeError(
                f"model is {self.model!r}, and the recipe has [{part}], which names {own.title} of your own. Set "
                f"model = '{name}', or remove [{part}]."
            )
        if self.pretraining is not None:
            raise RecipeError(f"The recipe has [{part}] and [pretraining]. Both give weights: remove one.")
        if self.privacy.release == Release.LAST_ITERATE.value:
            raise RecipeError(
                "privacy.release = 'last_iterate' needs a network of which constants are proven, and nothing is proven "
                "of one of your own. Remove privacy.release and privacy.descent."
            )

    def _check_last_iterate(self) -> None:
        """Check the conditions of a last-iterate session, before torch is loaded."""
        settings = self.training
        extras = (settings.averaging, settings.schedule, settings.augmentation, settings.rate_factors)
        if any(extra is not None for extra in extras):
            raise RecipeError(
                "privacy.release = 'last_iterate' is proven for the last model at one learning rate, on one view of "
                "every record. Remove training.averaging, schedule, augmentation and rate_factors."
            )
        if self.training.evaluate_every is not None:
            raise RecipeError(
                "training.evaluate_every measures models during the run, and privacy.release = 'last_iterate' assumes "
                "that nobody sees them. Remove it: the final model is measured in any case."
            )
        optimizer, descent = self.training.optimizer, self.privacy.descent or {}
        if not isinstance(optimizer, SgdSettings) or optimizer.momentum:
            raise RecipeError(
                "privacy.release = 'last_iterate' is proven for plain gradient descent only. Set training.optimizer to "
                "{ kind = 'sgd', learning_rate = ..., weight_decay = ... } without momentum."
            )
        for name, key, found in (
            ("learning_rate", "learning_rate", optimizer.learning_rate),
            ("weight_decay", "ridge", optimizer.weight_decay),
        ):
            if descent.get(key) is not None and found != descent[key]:
                raise RecipeError(
                    f"training.optimizer.{name} is {found!r} and privacy.descent.{key} is {descent[key]!r}. They are "
                    "the same constant of the proof: make them equal."
                )

    @property
    def info(self) -> DatasetInfo:
        """The public facts about the data set."""
        return describe(self.dataset) if self.own_data is None else self.own_data.info(self.dataset)

    @property
    def is_public(self) -> bool:
        """Whether losses and counts of these data may be shown."""
        return self.info.public if self.data_is_public is None else self.data_is_public

    @property
    def title(self) -> str:
        """The recipe's name, or what a model of own data predicts, or "MODEL on DATASET"."""
        if self.name or self.own_data is None:
            return self.name or f"{self.model_title} on {self.dataset}"
        return f"Prediction of {', '.join(self.info.task.names)} from {self.dataset.removeprefix(OWN_PREFIX)}"

    @property
    def model_title(self) -> str:
        """The name of the network, or the function that builds the user's own."""
        return self.model if self.own_weights is None else self.own_weights.title

    def plan(self) -> Plan:
        """Return the calibrated plan. Reads no data and loads no torch.

        Raises:
            RecipeError: the pieces do not fit together, or the epsilon cannot be reached.
        """
        return self.privacy.plan()

    @property
    def warning(self) -> str | None:
        """A warning about a delta that makes the guarantee weak, or None.

        A delta of at least one over the number of records permits a program that publishes one record.
        """
        size = self.info.train_size
        if self.privacy.delta * size < 1 or self.plan().not_private_because:
            return None
        return (
            f"delta {self.privacy.delta:g} is not below one over the {size:,} declared records: the promise holds, but "
            f"it would also hold if one whole record were published. Choose a delta well below {1 / size:.1g}."
        )

    def without_privacy(self, *, keeps_learning_rate: bool = False) -> Recipe:
        """Return the same recipe without clipping, noise and mask, to measure what privacy costs. NOT PRIVATE.

        Data, network, batches and number of steps are unchanged. The learning rate of SGD was chosen for gradients
        clipped to the bound: where the bound is below one, the rate is multiplied by it, unless the caller chose a rate
        for unclipped gradients.
        """
        bound, optimizer = self.privacy.clipping.get("norm"), self.training.optimizer
        is_short = isinstance(bound, float) and 0 < bound < 1
        if is_short and isinstance(optimizer, SgdSettings) and not keeps_learning_rate:
            assert isinstance(bound, float)
            # The product of learning rate and decay, by which one step shrinks the weights, is unchanged.
            rate, decay = optimizer.learning_rate * bound, optimizer.weight_decay / bound
            optimizer = optimizer.model_copy(update={"learning_rate": rate, "weight_decay": decay})
        training = self.training.model_copy(update={"optimizer": optimizer})
        changed: dict[str, Any] = {
            "name": f"{self.title}, without privacy",
            "description": "The same recipe without clipping, noise and mask, to see what privacy costs",
            "training": training,
            "privacy": self.privacy.without_protection(),
        }
        return self.model_copy(update=changed)

    def to_dict(self) -> dict[str, Any]:
        """Return the recipe as plain values, without absent keys."""
        return self.model_dump(exclude_none=True)

    def to_toml(self) -> str:
        """Return the recipe as a TOML file; reading it back gives an equal recipe."""
        return tomli_w.dumps(self.to_dict())


def _refuse_truncation_of_most_batches(sampling: Sampling) -> None:
    drawn = sampling.expected_batch_size
    if sampling.batch_limit is not None and drawn > sampling.batch_limit:
        raise RecipeError(
            f"privacy.sampling draws {drawn:g} records on average and max_batch_size is {sampling.batch_limit}: "
            "most steps would throw sampled records away and still pay for them. Lower rate or raise max_batch_size."
        )
