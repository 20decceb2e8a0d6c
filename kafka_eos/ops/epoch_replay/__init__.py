"""The replay of one epoch of a job in this process, without its sinks: an incident as a test.

    stored_epochs    what is stored about an epoch: its positions, and the state before it
    epoch_reader     reads the records of an epoch from its sources
    inexact_parts    what a replay cannot repeat exactly, by operator
    replay_report    what the replay showed, as text and as JSON
    committed_rows   reads the rows that an epoch committed to topics
    job_replay       runs the epoch, and compares it with what the job has stored
    pytest_writer    writes the records and the state as a fixture, and a pytest file

Rule: nothing of the job is changed. Sources are only read, and sinks are not opened.
"""
