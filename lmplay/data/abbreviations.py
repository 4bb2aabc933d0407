"""Words after which a full stop does not end a sentence, by language.  Data floor, no imports of lmplay.

The language of a text is not known, so the words of all languages hold at once. A word in lower case is found in any case, one with capitals only as it
is written here. Where a word is also an ordinary word that ends sentences, it stands under BEFORE_NUMBERS, or with a capital, or not at all.
"""
from __future__ import annotations

_ANYWHERE = {
    "English": "mr mrs ms mx dr prof rev messrs Fr Hon st Sr Jr Sen Rep Gov Pres Gen Col Maj Capt Cpt Lt Sgt Cpl Pvt Adm Cmdr Supt Insp Det mt Ft Bros "
               "vs cf viz approx est Figs eds ibid trans e.g i.e p.m a.m u.s u.k u.n d.c ph.d b.c a.d b.c.e c.e u.s.a Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct "
               "Nov Dec Tue Wed Thu Fri Wm Geo Chas Jas Thos Ave Blvd Rd",
    "German": "bzw z.b d.h u.a u.ä o.ä v.a i.d.r u.u z.t s.o s.u usf vgl ggf evtl inkl exkl sog hrsg bzgl zzgl abzgl geb gest verh hr fr frl dipl "
              "lic stud jh jhdt mio mrd tel ca Okt Dez Jän österr dt engl frz lat gr",
    "Dutch": "dhr mevr mw drs ir bijv bv d.w.z o.a i.v.m t.a.v m.b.t a.u.b evt resp nl ing burg",
    "French": "mm mme mmes mlle mlles mgr Me p.ex c.-à-d env éd av apr janv févr juil déc hab cie Ste Bd M",
    "Spanish": "sra srta sres dra dña ud uds vd vds avda admón gral lic excmo ilmo mons depto dpto tel ej p.ej a.c d.c pza ctra prov",
    "Portuguese": "exmo exma dra profa sra eng cel ltda cia tel séc p.ex a.c d.c",
    "Italian": "sig sig.ra sigg dott dott.ssa prof.ssa ing avv Arch On mons p.es a.c d.c s.p.a cfr pagg gent spett egr",
    "Catalan": "sra dra av p.ex pàg",
    "Romanian": "dl dna dnei nr ing sf cca alin jud",
    "Polish": "np m.in tzn tj tzw hab inż mgr św ks płk gen por ul al pl godz pow woj ur zm tys mln mld wg im r.n.e p.n.e n.e oprac",
    "Czech": "např tzv tj atd apod popř resp srov ul nám sv ing mgr mudr judr phdr rndr doc tis mil mld",
    "Croatian": "npr tj tzv odn sv ul prof dr gosp gđa mr br",
    "Slovene": "npr t.i oz ga ul št dr",
    "Hungarian": "ún kb vö id ifj özv sz szd ld pl",
    "Finnish": "esim ks mm ns vrt os klo nro tri prof eaa jaa",
    "Estonian": "nt lk vt s.o jne dots",
    "Latvian": "piem t.i plkst",
    "Lithuanian": "pvz t.y vad",
    "Swedish": "t.ex bl.a d.v.s dvs s.k f.d ca kl jfr resp f.kr e.kr fr.o.m t.o.m m.fl",
    "Danish": "f.eks bl.a dvs jf pkt mio mia hhv ca kl",
    "Turkish": "doç yrd sn Mah Cad Sok bkz örn yy m.ö m.s hz alb org av",
    "Indonesian": "drs hj jl tgl a.n d.a",
    "Vietnamese": "tp pgs ts ths gs bs ks",
    "Russian": "ул им тыс млн млрд руб коп табл напр проф акад доц корп обл пос просп пер бул наб гл ред изд т.е т.к т.н т.д т.п и.о н.э р-н англ нем франц "
               "лат греч см ср гг вв кв др г в гр тов",
    "Ukrainian": "вул тис грн див рр напр просп обл ім",
    "Bulgarian": "бул вж напр гр ул",
    "Greek": "π.χ λ.χ δηλ σελ βλ τηλ π.χρ μ.χ κ.λπ κ.ά αρ κκ",
    "Hindi": "डॉ श्री प्रो पं मो रु",
}
_BEFORE_NUMBERS = ("no nos nr nn núm num pp pág págs pag pgs pàg p s n vol vols bd fig abb tab art arts abs cap chap ch kap sec sect sez par op ed al aufl "
                   "str st č čj čl br bl lk blz rys tab ryc poz зб стр рис ст гл п пп т тт № с д αρ σελ ver v sz")


def _words(table: str) -> frozenset[str]:
    """Split a text into words."""
    return frozenset(table.split())


ABBREVIATIONS = _words(" ".join(_ANYWHERE.values()))
# These stand before a number, and before anything else they are the last word of a sentence.
BEFORE_NUMBERS = _words(_BEFORE_NUMBERS)
# Months that follow the day's number and a full stop ("3. Oktober"), and what else follows ordinal numbers that are written so.
AFTER_ORDINALS = _words("""
    januar jänner februar feber märz april mai juni juli august september oktober november dezember jahrhundert jahrhunderts weltkrieg weltkriegs weltkrieges
    jahrestag geburtstag auflage klasse kapitel platz bezirk stock bundestag
    január február március április május június július augusztus szeptember október december század""")
# Words of languages that write ordinal numbers with a full stop, before such a number: "am 3.", "der 2.".
BEFORE_ORDINALS = _words("am vom zum zur beim der die das dem den des im ab seit dieser diesem")
