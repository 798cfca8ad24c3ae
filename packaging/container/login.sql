-- The login of the server, made or given its password anew. psql takes that from the environment, so it is in no list of processes.
\getenv password SEQLINE_PASSWORD
SELECT 'CREATE ROLE seqline_server LOGIN' WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'seqline_server') \gexec
ALTER ROLE seqline_server PASSWORD :'password';
GRANT seqline_app, pg_read_all_stats TO seqline_server;
