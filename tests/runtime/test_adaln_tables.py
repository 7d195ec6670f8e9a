import struct

import pytest
import torch
from safetensors.torch import save_file

from backend.runtime import adaln_store, adaln_tables
from backend.runtime.adaln_tables import (
    Installation,
    ModelProjections,
    TableError,
    TableKey,
    TableLookup,
    build,
    timestep_bits,
)

CPU = torch.device("cpu")
SCHEDULE = [torch.tensor([0.0]), torch.tensor([0.25, 0.5]), torch.tensor([0.25, 0.5, 0.999])]


def tables_of(model, schedule=SCHEDULE, checkpoint="a", adapters=""):
    return build(ModelProjections(model), schedule, TableKey.of(schedule, checkpoint, adapters))


def test_bits_tell_what_floats_can_tell_and_no_more():
    # 0.5 + 1e-12 rounds to 0.5 in float32, 0.25000003 does not round to 0.25.
    assert timestep_bits(torch.tensor([0.5 + 1e-12])) == timestep_bits(torch.tensor([0.5]))
    assert timestep_bits(torch.tensor([0.25000003])) != timestep_bits(torch.tensor([0.25]))
    assert timestep_bits(torch.tensor([1.0])) == (0x3F800000,)
    assert timestep_bits(torch.tensor([0.999], dtype=torch.float64)) == struct.unpack("<i", struct.pack("<f", 0.999))


def test_tables_hold_the_bits_the_model_computes(transformer):
    tables = tables_of(transformer)
    for step, timesteps in enumerate(SCHEDULE):
        temb = transformer.time_embedder(transformer.time_proj(timesteps))
        for layer, block in enumerate(transformer.transformer_blocks):
            expected = torch.cat(block.adaln_proj(temb), dim=-1)  # (timesteps * 3, 6 * hidden)
            assert torch.equal(tables.block(layer, step), expected)
        expected = transformer.norm_out.linear(torch.nn.functional.silu(temb))
        assert torch.equal(tables.output(step), expected)


def test_the_models_own_forward_gives_the_same_bits_from_tables(transformer, case):
    expected = transformer(**case, return_dict=False)
    schedule = [torch.tensor([0.1]), case["timestep"]]
    installation = Installation(transformer, tables_of(transformer, schedule))
    installation.release()
    installation.select(timestep_bits(case["timestep"]))
    got = transformer(**case, return_dict=False)
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))


def test_a_step_without_a_table_is_an_error_that_says_so(transformer):
    tables = tables_of(transformer)
    with pytest.raises(TableError, match=r"timestep=0\.75: the AdaLN tables hold 3 other steps"):
        tables.step(timestep_bits(torch.tensor([0.75])))
    with pytest.raises(TableError, match=r"step=3: the AdaLN tables hold steps 0 to 2"):
        tables.block(0, 3)
    with pytest.raises(TableError, match=r"step=-1"):
        tables.output(-1)
    with pytest.raises(TableError, match=r"layer=9"):
        tables.block(9, 0)


def test_a_plan_of_another_length_is_an_error(transformer):
    key = TableKey.of(SCHEDULE, "a")
    with pytest.raises(TableError, match="2 steps does not match its key of 3 steps"):
        build(ModelProjections(transformer), SCHEDULE[:2], key)


def test_all_projections_are_replaced_or_none(transformer, case):
    expected = transformer(**case, return_dict=False)
    tables = tables_of(transformer)
    transformer.norm_out.linear = torch.nn.Linear(40, 7)  # the last to be replaced does not fit
    broken = transformer.norm_out.linear
    with pytest.raises(TableError, match="has 7 outputs"):
        Installation(transformer, tables)
    assert not any(isinstance(module, TableLookup) for module in transformer.modules())
    assert transformer.norm_out.linear is broken
    assert expected[0].isfinite().all()


def test_removing_brings_the_projections_back(transformer, case):
    expected = transformer(**case, return_dict=False)
    Installation(transformer, tables_of(transformer)).remove()
    assert torch.equal(transformer(**case, return_dict=False)[0], expected[0])


def test_tables_cannot_be_built_twice_from_projections_that_are_gone(transformer):
    Installation(transformer, tables_of(transformer)).release()
    with pytest.raises(TableError, match=r"projections of layers .* are missing"):
        tables_of(transformer)


def test_memory_is_forecast_from_the_config(transformer):
    tables = tables_of(transformer)
    report = adaln_tables.forecast(dict(transformer.config), len(SCHEDULE), 3, itemsize=4)
    assert report.tables_bytes == tables.nbytes
    owners = [*(block.adaln_proj for block in transformer.transformer_blocks), transformer.norm_out.linear]
    assert report.weights_bytes == sum(each.nbytes for owner in owners for each in owner.parameters())
    released = {"hidden_size": 5376, "time_embed_dim": 2688, "num_layers": 50}
    gib = 2**30
    figures = [adaln_tables.forecast(released, 49, timesteps).tables_bytes / gib for timesteps in (2, 3, 4)]
    # h3-facts 4: 0.89 / 1.33 / 1.77 GiB instead of 24.29 GiB
    assert figures == pytest.approx([0.89, 1.33, 1.77], abs=0.01)
    assert adaln_tables.forecast(released, 49, 2).weights_bytes / gib == pytest.approx(24.29, abs=0.05)


@pytest.fixture
def folder(tmp_path, transformer):
    """A transformer's folder with its weights in two shards."""
    weights = {name: each.contiguous() for name, each in transformer.state_dict().items()}
    names = sorted(weights)
    for number, part in enumerate((names[::2], names[1::2])):
        save_file({name: weights[name] for name in part}, tmp_path / f"model-{number}.safetensors")
    return tmp_path


def test_shards_give_the_same_tables_as_the_model(folder, transformer):
    shards = adaln_store.ShardProjections(folder, transformer, CPU, torch.float32)
    key = TableKey.of(SCHEDULE, "a")
    tables = build(shards, SCHEDULE, key)
    expected = tables_of(transformer)
    assert torch.equal(tables.blocks, expected.blocks)
    assert torch.equal(tables.final, expected.final)


def test_a_projection_missing_from_the_shards_makes_no_table(folder, transformer):
    weights = {name: each for name, each in transformer.state_dict().items() if "blocks.1.adaln" not in name}
    for file in folder.glob("*.safetensors"):
        file.unlink()
    save_file({name: each.contiguous() for name, each in weights.items()}, folder / "model.safetensors")
    shards = adaln_store.ShardProjections(folder, transformer, CPU, torch.float32)
    with pytest.raises(TableError, match=r"layers \[1\] are missing"):
        build(shards, SCHEDULE, TableKey.of(SCHEDULE, "a"))


def test_identity_follows_content_not_place(folder, transformer, tmp_path_factory):
    other = tmp_path_factory.mktemp("copy")
    for file in folder.glob("*.safetensors"):
        (other / file.name).write_bytes(file.read_bytes())
    identity = adaln_store.checkpoint_identity(folder)
    assert adaln_store.checkpoint_identity(other) == identity
    transformer.transformer_blocks[2].adaln_proj.linear.weight.data[0, 0] += 1
    for file in other.glob("*.safetensors"):
        file.unlink()
    save_file({name: each.contiguous() for name, each in transformer.state_dict().items()}, other / "m.safetensors")
    assert adaln_store.checkpoint_identity(other) != identity


def test_tables_come_back_from_disk_for_their_own_key_only(tmp_path, transformer):
    store = adaln_store.TableStore(tmp_path / "adaln")
    tables = tables_of(transformer, adapters="style:0.8")
    assert store.load(tables.key, CPU) is None
    path = store.save(tables)
    found = store.load(tables.key, CPU)
    assert torch.equal(found.blocks, tables.blocks) and torch.equal(found.final, tables.final)
    assert store.load(TableKey(tables.key.steps, "a", "style:0.9"), CPU) is None
    assert store.load(TableKey(tables.key.steps, "b", "style:0.8"), CPU) is None
    assert store.load(TableKey(tables.key.steps[:2], "a", "style:0.8"), CPU) is None
    assert [each.name for each in path.parent.iterdir()] == [path.name]  # no partial file is left


def test_a_damaged_or_foreign_file_is_no_table(tmp_path, transformer):
    store = adaln_store.TableStore(tmp_path)
    tables = tables_of(transformer)
    path = store.save(tables)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert store.load(tables.key, CPU) is None
    save_file({"blocks": tables.blocks, "final": tables.final}, path, metadata={"key": "another"})
    assert store.load(tables.key, CPU) is None
