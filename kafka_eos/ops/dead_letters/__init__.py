"""Dead letters after the fact: listing them, and replaying the rejected records.

    topics            the dead-letter topics of a source, and the topics of its records
    selection         selects dead letters
    reader            reads all dead letters that exist now, one after the other
    text_output       dead letters and their counts, as text and as JSON
    replay_request    the parameters of a replay, in all of its processes
    replay_pipeline   the job that replays records: a pipeline like any other, in a file that its workers load
    replay_progress   the target of a replay, and the dead letters that it has replayed

Rule: the same job never replays a record twice, whichever of its dead letters is selected. The job's own state records
it, and is committed together with the records.
"""
