-- Every definition of the database as (table or group, key, text). gem runs this after the episode,
-- with search_path = pg_catalog.
select c.relname::text, 'relation', concat_ws(' ', c.relkind, c.relpersistence, c.relrowsecurity,
    c.relforcerowsecurity, c.relacl::text, c.reloptions::text)
from pg_class c where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'v', 'm', 'p', 'f')
union all
select c.relname::text, 'view', pg_get_viewdef(c.oid)
from pg_class c where c.relnamespace = 'public'::regnamespace and c.relkind in ('v', 'm')
union all
select c.relname::text, 'column ' || a.attname, concat_ws(' ', format_type(a.atttypid, a.atttypmod),
    a.attnotnull, a.attidentity, a.attgenerated, pg_get_expr(d.adbin, d.adrelid), a.attacl::text)
from pg_attribute a join pg_class c on c.oid = a.attrelid
left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p', 'f')
    and a.attnum > 0 and not a.attisdropped
union all
select c.relname::text, 'constraint ' || k.conname, pg_get_constraintdef(k.oid)
from pg_constraint k join pg_class c on c.oid = k.conrelid
where c.relnamespace = 'public'::regnamespace
union all
select c.relname::text, 'index ' || i.relname, pg_get_indexdef(i.oid)
from pg_index x join pg_class i on i.oid = x.indexrelid join pg_class c on c.oid = x.indrelid
where c.relnamespace = 'public'::regnamespace
union all
select c.relname::text, 'trigger ' || t.tgname, concat_ws(' ', t.tgenabled, pg_get_triggerdef(t.oid))
from pg_trigger t join pg_class c on c.oid = t.tgrelid
where c.relnamespace = 'public'::regnamespace and not t.tgisinternal
union all
select c.relname::text, 'rule ' || r.rulename, concat_ws(' ', r.ev_enabled, pg_get_ruledef(r.oid))
from pg_rewrite r join pg_class c on c.oid = r.ev_class
where c.relnamespace = 'public'::regnamespace and r.rulename <> '_RETURN'
union all
select c.relname::text, 'policy ' || p.polname, concat_ws(' ', p.polcmd, p.polpermissive,
    pg_get_expr(p.polqual, p.polrelid), pg_get_expr(p.polwithcheck, p.polrelid))
from pg_policy p join pg_class c on c.oid = p.polrelid
where c.relnamespace = 'public'::regnamespace
union all
select '(functions)', p.oid::regprocedure::text, concat_ws(' ', p.prokind, p.prosecdef, p.provolatile,
    p.prosrc, p.proacl::text)
from pg_proc p where p.pronamespace = 'public'::regnamespace
union all
select '(types)', t.typname::text, concat_ws(' ', t.typtype,
    (select string_agg(e.enumlabel, ',' order by e.enumsortorder) from pg_enum e where e.enumtypid = t.oid),
    (select string_agg(pg_get_constraintdef(k.oid), ' ') from pg_constraint k where k.contypid = t.oid))
from pg_type t left join pg_class c on c.oid = t.typrelid
where t.typnamespace = 'public'::regnamespace and (t.typtype in ('e', 'd', 'r') or c.relkind = 'c')
union all
select '(schemas)', n.nspname::text, coalesce(n.nspacl::text, '')
from pg_namespace n where n.nspname not like 'pg\_%' and n.nspname <> 'information_schema'
union all
select '(extensions)', e.extname::text, '' from pg_extension e
union all
select '(settings)', s.setdatabase::text || ' ' || s.setrole::text, s.setconfig::text
from pg_db_role_setting s
