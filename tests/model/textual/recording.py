"""Edits of the record: what commitments cover, what the numbers of keys hide, and what an upgrade keeps. Whoever makes
a commitment and whoever checks it call one function: no store and no world sees that it covers less, but these tests
do."""

from tests.model.textual.mutant import TextualMutant

COMMITMENTS = "holdfast.core.commitments"
SECTIONS = "holdfast.core.sections"
JOURNAL = "holdfast.core.journal"
UPGRADE = "holdfast.stores.sqlite.upgrade"
OF_COMMITMENTS = "tests/core/test_commitments.py"
OF_SECTIONS = "tests/core/test_sections.py"

MUTANTS = (
    TextualMutant(
        name="the_commitment_to_a_section_does_not_cover_its_boundary",
        where=f"{COMMITMENTS}:section",
        old="_pack_section(chain, boundary, len(commit_id))",
        new="_pack_section(chain, 0, len(commit_id))",
        file=OF_SECTIONS,
        test="test_a_section_fits_only_its_commit_its_boundary_its_chain_and_its_batch",
        notice="what was told of one stage is passed off as told of another",
    ),
    TextualMutant(
        name="the_commitment_to_a_section_does_not_cover_its_commit",
        where=f"{COMMITMENTS}:section",
        old="(salt, uid, place, commit_id, content)",
        new="(salt, uid, place, bytes(len(commit_id)), content)",
        file=OF_SECTIONS,
        test="test_a_section_fits_only_its_commit_its_boundary_its_chain_and_its_batch",
        notice="a section of one commit is passed off as that of another",
    ),
    TextualMutant(
        name="the_commitment_to_words_does_not_cover_their_item",
        where=f"{COMMITMENTS}:text",
        old="_pack_text(n, boundary)",
        new="_pack_text(0, boundary)",
        file=OF_COMMITMENTS,
        test="test_every_fact_and_every_label_makes_another_commitment",
        notice="words about one item are passed off as words about another",
    ),
    TextualMutant(
        name="the_commitment_to_a_payload_does_not_cover_its_revision",
        where=f"{COMMITMENTS}:payload",
        old="_pack_key(revision, len(name))",
        new="_pack_key(0, len(name))",
        file=OF_COMMITMENTS,
        test="test_every_fact_and_every_label_makes_another_commitment",
        notice="an old payload is passed off as the corrected one",
    ),
    TextualMutant(
        name="the_commitment_to_a_payload_does_not_cover_where_its_key_ends",
        where=f"{COMMITMENTS}:payload",
        old="_pack_key(revision, len(name))",
        new="_pack_key(revision, 0)",
        file=OF_COMMITMENTS,
        test="test_a_letter_cannot_move_from_the_key_into_the_payload",
        notice="a letter moves from a key into its payload",
    ),
    TextualMutant(
        name="the_commitment_to_an_output_does_not_cover_its_epoch",
        where=f"{COMMITMENTS}:outputs",
        old="if o.stage != stage or o.epoch != epoch:",
        new="if o.stage != stage:",
        file=OF_COMMITMENTS,
        test="test_many_outputs_are_committed_to_as_each_of_them_is",
        notice="an output from before a reset is passed off as the one after it",
    ),
    TextualMutant(
        name="a_key_number_needs_no_key",
        where=f"{COMMITMENTS}:KeyIndex.__init__",
        old="hashlib.blake2b(key=key, digest_size=16)",
        new="hashlib.blake2b(digest_size=16)",
        file=OF_COMMITMENTS,
        test="test_a_number_cannot_be_computed_without_the_index_key",
        notice="keys are guessed from an index that was leaked",
    ),
    TextualMutant(
        name="the_end_of_a_key_is_in_its_number",
        where=f"{COMMITMENTS}:KeyIndex.numbers",
        old='found.append(base | int.from_bytes(hashed.digest()[:4], "big") >> 1)',
        new='found.append(base | int.from_bytes(name[-3:], "big"))',
        file=OF_COMMITMENTS,
        test="test_a_number_cannot_be_computed_without_the_index_key",
        notice="the last three letters of every key are readable in the index",
    ),
    TextualMutant(
        name="words_that_nothing_refers_to_are_taken",
        where=f"{SECTIONS}:check_texts",
        old="if next(texts, None) is not None:",
        new="if next(texts, None) is not None and not wanted:",
        file=OF_SECTIONS,
        test="test_words_cannot_be_exchanged_added_or_passed_off_as_those_of_another_item",
        notice="words are slipped into the record",
    ),
    TextualMutant(
        name="words_are_looked_for_in_any_section",
        where=f"{SECTIONS}:check_texts",
        old="(found.n, found.boundary, told) != (n, boundary, said)",
        new="(found.n, told) != (n, said)",
        file=OF_SECTIONS,
        test="test_words_cannot_be_exchanged_added_or_passed_off_as_those_of_another_item",
        notice="words of one stage are listed under another",
    ),
    TextualMutant(
        name="a_section_more_or_less_is_overlooked",
        where=f"{JOURNAL}:_check_sections",
        old="for boundary, frame in frames] != header.sections:",
        new="for boundary, frame in frames] != header.sections[: len(frames)]:",
        file=OF_SECTIONS,
        test="test_sections_cannot_be_exchanged_left_out_joined_or_repeated[Checkpointed]",
        notice="the attempts of a stage are removed from the record",
    ),
    TextualMutant(
        name="an_entry_of_another_batch_is_taken",
        where=f"{JOURNAL}:_check_place",
        old="(header.uid, header.chain) == (chain.uid, chain.number)",
        new="header.chain == chain.number",
        file="tests/core/test_journal.py",
        test="test_an_entry_under_another_number_or_in_another_chain_is_found",
        notice="an entry is copied from another batch",
    ),
    TextualMutant(
        name="an_upgrade_leaves_out_keys_whose_number_is_taken",
        where=f"{UPGRADE}:_index_keys",
        old="if db.changes():",
        new="if db.changes() is not None:",
        file="tests/stores/test_old_files.py",
        test="test_keys_that_collide_are_told_apart_by_the_upgrade",
        notice="an item of an old file comes a second time",
    ),
    TextualMutant(
        name="an_upgrade_does_not_say_which_chunk_is_which",
        where=f"{UPGRADE}:_begin_format",
        old="journal.Formatted(batch=number, chunks=chunks)",
        new="journal.Formatted(batch=number)",
        file="tests/stores/test_old_files.py",
        test="test_every_batch_of_an_old_file_gets_a_uid_and_an_entry_at_which_the_format_begins[1]",
        notice="entries of an old chunk cannot be found from the chain of its batch",
    ),
)
